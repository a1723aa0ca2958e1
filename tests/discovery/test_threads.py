"""Threads of devices."""

import pytest

from fleetune.contracts.fleet_request import DeviceRequest, Emulate, FleetRequest
from fleetune.discovery.devices import build_devices
from fleetune.discovery.machine_facts import Accelerator
from fleetune.errors import Refused
from tests.discovery.test_assemble import asked, boxed, facts, fleet


def counted(request: FleetRequest, cores: float = 4.0, **machine: object) -> list[int]:
    """Threads of the devices of a machine."""
    there = {d.name: facts(cores=cores, machine_cores=cores, **machine) for d in request.devices}
    return [device.threads for device in build_devices(request, there)]


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.3, 1), (0.9999, 1), (1.0, 1), (1.9, 1), (2.0, 2), (2.5, 2), (4.0, 4)]
)
def test_a_quota_never_has_more_threads_than_cores(quota: float, threads: int) -> None:
    """Every device trained with one thread, whatever it had. Now its quota, rounded down, decides, and at least one:
    with more, threads wait for others that the kernel holds."""
    for request in (asked("a", cores=quota), boxed("a", cores=quota)):
        assert counted(fleet(request)) == [threads]


@pytest.mark.parametrize(("cores", "threads"), [(1.0, 1), (2.0, 2), (2.5, 2), (64.0, 64)])
def test_a_device_without_a_quota_gets_its_cores(cores: float, threads: int) -> None:
    """As processes and as a container, also where only its memory is emulated."""
    for request in (asked("a"), boxed("a"), asked("a", memory_bytes=10)):
        assert counted(fleet(request), cores) == [threads]


def test_devices_of_one_machine_share_what_quotas_leave_of_its_cores() -> None:
    """Two without a quota get a half each, beside a quota less, and never none; other machines do not count."""
    assert counted(fleet(asked("a"), asked("b"))) == [2, 2]
    assert counted(fleet(asked("a"), asked("b"), asked("c"))) == [1, 1, 1]
    assert counted(fleet(asked("a"), asked("b", cores=2.5))) == [1, 2]
    assert counted(fleet(*(asked(name) for name in "abcdef"))) == [1] * 6
    apart = build_devices(fleet(asked("a"), asked("b")), {"a": facts(), "b": facts(machine="n")})
    assert [device.threads for device in apart] == [4, 4]


def test_a_device_on_a_gpu_takes_no_cores_from_others() -> None:
    """It has one thread that launches kernels."""
    gpu = Accelerator(name="H", memory_bytes=80)
    assert counted(fleet(asked("a", "cuda:0"), asked("b", "cpu")), accelerators=(gpu,)) == [1, 4]


def test_a_wish_is_granted_up_to_what_there_is() -> None:
    """`threads` of the fleet file; above a quota or the machine it is refused with both numbers."""
    assert counted(fleet(DeviceRequest(name="a", threads=3), asked("b"))) == [3, 2]
    assert counted(fleet(DeviceRequest(name="a", threads=1, emulate=Emulate(cores=2.0)))) == [1]
    with pytest.raises(Refused, match=r"device a: threads is 5 but its machine has 4 cores; ask for at most 4"):
        counted(fleet(DeviceRequest(name="a", threads=5)))
    with pytest.raises(Refused, match=r"device a: threads is 2 but its quota has 0.5 cores; ask for at most 1"):
        counted(fleet(DeviceRequest(name="a", threads=2, emulate=Emulate(cores=0.5))))
    with pytest.raises(Refused, match="threads"):
        DeviceRequest(name="a", threads=0)
