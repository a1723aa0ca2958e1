"""The port of a service: nobody else has it, not even another service of the same user."""

import socket

import pytest

from fleetune.errors import Refused
from flows.prefect_server import HOST
from flows.service import control
from flows.service.keeper import reserve
from flows.service.record import ServiceRecord
from tests.flows.service.client import ServiceClient

RUNNING = ServiceRecord(
    address="http://127.0.0.1:4950", root="runs", keeper=1, started="", authenticated=False, version="1"
)


def test_two_services_have_no_port_together() -> None:
    """Bug: SO_REUSEPORT let a second store's service have the port of the first, and both said they were ready. The
    port is the first one's and its server's alone, also while the server is away.
    """
    port = ServiceClient.free_port()
    with reserve(port):
        with pytest.raises(Refused, match=rf"port {port}: another program has it; give another with --port"):
            reserve(port)
        with socket.create_server((HOST, port), reuse_port=True) as listener:
            with pytest.raises(Refused, match=str(port)):
                reserve(port)
            with socket.create_connection((HOST, port)), listener.accept()[0]:
                pass
        with pytest.raises(Refused, match=str(port)):
            reserve(port)
    with reserve(port):
        """A connection that has just ended holds nothing."""


def test_settings_of_a_running_service_are_not_ignored() -> None:
    """`up` with another port or password than the running service has says so, and how to change it."""
    for same in (control.ServiceOptions(), control.ServiceOptions(port=4950, password=False)):
        control.refuse_changes(RUNNING, same)
    with pytest.raises(Refused, match=r"--port 4951: .* runs already, on http://127.0.0.1:4950; .* fleetune down"):
        control.refuse_changes(RUNNING, control.ServiceOptions(port=4951))
    with pytest.raises(Refused, match=r"--password: .* runs already, without one; .* fleetune down"):
        control.refuse_changes(RUNNING, control.ServiceOptions(password=True))
