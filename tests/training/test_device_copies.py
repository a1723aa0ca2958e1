"""Copies between links and the device that computes: nothing on CPUs, and in the right order on a GPU.

No GPU is needed: its streams are stand-ins that write down what they are told, and its memory is this process's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from fleetune.models.device_memory import DeviceCopies, on_host

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def test_a_cpu_copies_nothing() -> None:
    """What is sent is the tensor's own memory, and what was received stays where it came."""
    copies, tensor = DeviceCopies(CPU), torch.arange(6.0).view(2, 3).requires_grad_(True)
    (sent,) = copies.to_host([tensor])
    assert sent.data_ptr() == tensor.data_ptr() and not sent.requires_grad
    assert copies.to_device(tensor).data_ptr() == tensor.data_ptr()


def test_what_a_cpu_writes_is_its_own_memory() -> None:
    """In the order of before, contiguous, and copied only where it must be."""
    tensors = {"b": torch.arange(6.0), "a": torch.arange(6.0).view(2, 3).t()}
    found = on_host(tensors)
    assert list(found) == ["b", "a"] and found["b"].data_ptr() == tensors["b"].data_ptr()
    assert found["a"].is_contiguous() and torch.equal(found["a"], tensors["a"])


def test_what_is_sent_is_contiguous() -> None:
    """A message is read byte by byte."""
    (sent,) = DeviceCopies(CPU).to_host([torch.arange(6.0).view(2, 3).t()])
    assert sent.is_contiguous() and sent.tolist() == [[0, 3], [1, 4], [2, 5]]


class Stream:
    """A stream that writes down what it is told."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: "Stream") -> None:
        """Wait for all that was launched in another stream."""
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        """Let this process wait."""
        self.log.append(f"process waits for {self.name}")


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, and which streams keep its memory."""

    kept: list[str]

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """As a tensor of a GPU."""
        return True

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        """Keep the memory until what is in the stream now has run."""
        stream.log.append(f"memory is kept for {stream.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams are told, in order."""
    said: list[str] = []
    names = iter(("copies 1", "copies 2"))

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        said.append(f"in {stream.name}:")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(names), said))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("compute", said))
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: torch.zeros(shape, dtype=dtype))
    return said


def test_a_message_waits_for_what_computes_it_and_is_waited_for_once(log: list[str]) -> None:
    """Two tensors: after the kernels that make them, in a stream of copies; neither's memory is used again before."""
    tensors = [torch.full((2,), float(k)).as_subclass(OnGpu) for k in (1, 2)]
    found = DeviceCopies(GPU).to_host(tensors)
    assert [each.tolist() for each in found] == [[1, 1], [2, 2]]
    assert log == [
        "copies 1 waits for compute",
        "in copies 1:",
        "memory is kept for copies 1",
        "memory is kept for copies 1",
        "process waits for copies 1",
    ]


def test_what_arrives_is_there_for_work_that_is_launched_later(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This process waits for nothing; the stream that computes waits for the copy, and keeps its memory."""
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: self.as_subclass(OnGpu))
    there = DeviceCopies(GPU).to_device(torch.ones(3))
    assert there.tolist() == [1, 1, 1]
    assert log == ["in copies 1:", "compute waits for copies 1", "memory is kept for compute"]


def test_each_direction_has_a_stream(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU copies both ways at once."""
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: self.as_subclass(OnGpu))
    copies, tensor = DeviceCopies(GPU), torch.ones(1).as_subclass(OnGpu)
    for _ in range(2):
        copies.to_host([tensor])
        copies.to_device(torch.ones(1))
    assert {line for line in log if line.startswith("in ")} == {"in copies 1:", "in copies 2:"}
