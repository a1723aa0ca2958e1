"""Requests to the kernel that limit links to rates, against a fake kernel."""

import io
import json
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from fleetune.errors import TryAgain
from fleetune.launching.docker import traffic_control
from fleetune.launching.docker.traffic_control import (
    FRAME_BYTES,
    TrafficShape,
    apply,
    filter_key,
    htb_class,
    max_gso_segments,
)

MBIT = 125_000.0


class Kernel:
    """A fake kernel that records commands and fails those in `refuses` (command -> error number)."""

    def __init__(self, refuses: dict[str, int] | None = None) -> None:
        self.told: list[tuple[str, ...]] = []
        self.details: list[dict[str, Any]] = []
        self._refuses = refuses or {}

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def link_lookup(self, ifname: str) -> list[int]:
        """Only eth0 exists."""
        return [7] if ifname == "eth0" else []

    def link(self, command: str, index: int, gso_max_segs: int) -> None:
        """Record the bound on merged segments."""
        assert (command, index) == ("set", 7)
        self.told.append(("link", str(gso_max_segs)))

    def tc(self, command: str, kind: str = "", index: int = 0, handle: int = 0, **details: Any) -> None:
        """Record a command, or refuse it."""
        assert index == 7
        if command in self._refuses:
            raise NetlinkError(self._refuses[command], "Operation not permitted")
        self.told.append((command, kind, f"{handle:x}"))
        self.details.append(details)


@pytest.mark.parametrize("mbit_per_s", [1, 8, 20, 100, 500, 1000])
def test_a_class_lets_through_what_was_asked(mbit_per_s: float) -> None:
    """The payload of full frames at the class's rate is the requested rate, and a burst is 0.25 ms of it.

    So small messages are limited too, and large ones do not wait for timers.
    """
    made = htb_class(mbit_per_s * MBIT)
    assert made.rate * 1448 / FRAME_BYTES == pytest.approx(mbit_per_s * MBIT, rel=1e-5)
    assert made.burst == pytest.approx(made.rate * 0.00025, abs=1)
    options = made.options()
    assert options["ceil"] == options["rate"] and options["cburst"] == options["burst"], "nothing is ever borrowed"


@pytest.mark.parametrize(
    ("mbit_per_s", "segments"),
    [((), 44), ((1,), 1), ((20,), 1), ((100,), 2), ((500, 100), 2), ((1000,), 21), ((9e4,), 44)],
)
def test_merged_segments_are_small_beside_the_slowest_link(mbit_per_s: tuple[float, ...], segments: int) -> None:
    """A merged segment has at most 0.25 ms of the slowest rate, and at least one TCP segment.

    Bug: 64 KiB crossed a link of 20 Mbit/s in 2 ms instead of 26, because htb let the first bundle pass whole.
    """
    assert max_gso_segments(each * MBIT for each in mbit_per_s) == segments


def test_filter_key() -> None:
    """A filter key is the address as a number at the offset of the destination in a header."""
    assert filter_key("172.30.0.3") == "0xac1e0003/0xffffffff+16"
    assert filter_key("10.0.0.1") == "0x0a000001/0xffffffff+16"


def test_every_destination_gets_its_own_class_and_the_rest_passes() -> None:
    """The old queue is removed, each address gets a class, a queue and a filter, and other traffic is not limited."""
    kernel = Kernel()
    apply(TrafficShape(interface="eth0", rates={"10.0.0.2": 20 * MBIT, "10.0.0.3": MBIT}), kernel)
    assert kernel.told == [
        ("del", "", "0"),
        ("link", "1"),
        ("add", "htb", "10000"),
        ("add-class", "htb", "10010"),
        ("add", "pfifo", "20000"),
        ("add-filter", "u32", "0"),
        ("add-class", "htb", "10011"),
        ("add", "pfifo", "30000"),
        ("add-filter", "u32", "0"),
    ]
    assert {"default": 0} in kernel.details
    assert [each["keys"] for each in kernel.details if "keys" in each] == [
        ["0x0a000002/0xffffffff+16"],
        ["0x0a000003/0xffffffff+16"],
    ]
    assert [each["target"] for each in kernel.details if "target" in each] == [0x10010, 0x10011]


def test_no_queue_to_remove_is_no_failure() -> None:
    """A missing queue is no error, and any other failure to remove it is reported."""
    kernel = Kernel({"del": 2})
    apply(TrafficShape(interface="eth0", rates={}), kernel)
    assert kernel.told == [("link", "44"), ("add", "htb", "10000")]
    with pytest.raises(TryAgain, match="interface eth0 cannot be shaped: the kernel says Operation not permitted"):
        apply(TrafficShape(interface="eth0", rates={}), Kernel({"del": 1}))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"interface": "eth7", "rates": {}}, "interface eth7 is not there"),
        ({"interface": "eth0", "rates": {"10.0.0.2": 0}}, "rate to 10.0.0.2: bytes_per_s must be a number above 0"),
        ({"interface": "eth0", "rates": {"nano": 1}}, "'nano' is not an IPv4 address"),
        ({"interface": "eth0", "rates": {"10.0.0.2": 1}, "more": 1}, "more"),
        ("no object", "shape: "),
    ],
)
def test_errors_are_one_sentence(
    line: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every error ends the program with exit code 75 and one line."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(line).encode() + b"\n")))
    assert traffic_control.main(Kernel) == 75
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_success_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Success ends with exit code 0 and no output."""
    line = b'{"interface": "eth0", "rates": {"10.0.0.2": 1e6}}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert traffic_control.main(Kernel) == 0
    assert capsys.readouterr().err == ""
