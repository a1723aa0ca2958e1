"""A sign of life that a listening process gives without its interpreter."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.greeting import greets
from fleetune.links.message import Message
from tests.support.links.ends import KEYS, LISTED, PATIENCE_S, two_ends

SHORT_S = 0.3
HOLDS_THE_INTERPRETER = """
import re, sys, threading, zmq
from fleetune.links.authentication import new_key_pair
from fleetune.links.endpoint import Endpoint
with Endpoint("bob", new_key_pair(), {}, run="r", note=print) as bob:
    print(bob.address, flush=True)
    if sys.stdin.readline() == "hold\\n":
        print("held", flush=True)
        re.match("(a*)*b", "a" * 40)  # one call that takes hours, and lets no other thread run
"""


@contextmanager
def endpoint_elsewhere() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An endpoint of another process, and its address."""
    command = [sys.executable, "-c", HOLDS_THE_INTERPRETER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_frozen_process_does_not_greet_and_a_thawed_one_does() -> None:
    """Its kernel still accepts connections, which says nothing of the process."""
    with endpoint_elsewhere() as (process, address):
        assert greets(address, PATIENCE_S)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # all of its threads
        assert not greets(address, SHORT_S)
        os.kill(process.pid, signal.SIGCONT)
        assert greets(address, PATIENCE_S)
        process.kill()
        process.wait()
        assert not greets(address, SHORT_S), "nobody listens there any more"


def test_a_process_whose_interpreter_is_held_greets() -> None:
    """A long garbage collection or forward lets no thread of Python run: neither beats nor answers in Python come."""
    with endpoint_elsewhere() as (process, address):
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("hold\n")
        process.stdin.flush()
        assert process.stdout.readline() == "held\n"
        assert greets(address, PATIENCE_S)


def test_what_greets_otherwise_is_no_sign_of_life() -> None:
    """Another program at the address, or none, and an address that cannot be read."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0")

        threading.Thread(target=answer, daemon=True).start()
        assert not greets(f"tcp://127.0.0.1:{server.getsockname()[1]}", SHORT_S)
        server.shutdown(socket.SHUT_RDWR)
    for address in ("tcp://127.0.0.1:1", "tcp://127.0.0.1:70000", "tcp://127.0.0.1", "nonsense"):
        assert not greets(address, 0.05), address


def test_nobody_is_asked_any_more_once_the_answer_does_not_matter() -> None:
    """A probe of a device that was given up ends."""
    asked = iter([False, True])
    assert not greets("tcp://127.0.0.1:1", PATIENCE_S, lambda: next(asked))


def test_greetings_disturb_no_messages() -> None:
    """An endpoint that is asked again and again loses nothing; each is counted as a client that was turned away."""
    with two_ends() as ends:
        for number in range(5):
            assert greets(ends.bob.address, PATIENCE_S)
            ends.ann.send("bob", Message("k", {"number": number}))
            received = ends.bob.receive(PATIENCE_S)
            assert received is not None and received.message.header == {"number": number}
        assert ends.bob.lost == 0


@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "behind a delay"])
def test_a_wake_ends_the_wait_of_the_thread_that_receives(delayed: bool) -> None:
    """Without a message, and only once: it is what ends the coordinator's wait when a process has ended."""
    listen = Listen(delays_s={"bob": 0.1}) if delayed else Listen()
    with Endpoint("ann", KEYS["ann"], LISTED, run="run-1", listen=listen, note=lambda _: None) as ann:
        threading.Timer(0.05, ann.wake).start()
        assert ann.receive(PATIENCE_S) is None
        ann.wake()
        assert ann.receive(PATIENCE_S) is None
        assert ann.receive(0) is None


@pytest.mark.parametrize("wakes", [True, False])
def test_the_end_of_a_connection_wakes_an_endpoint_that_asks_for_it(wakes: bool) -> None:
    """It is known as soon as the kernel of the other end has closed it, without a beat that is missed."""
    with two_ends() as ends:
        ends.ann.wakes_on_disconnect = wakes
        ends.bob.close()
        assert ends.ann.receive(PATIENCE_S if wakes else SHORT_S) is None
        assert not wakes or ends.ann.down_s.keys() == {"bob"}
