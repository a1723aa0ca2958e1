"""A problem's numbers as arrays of running sums, so that the cost of any run of layers is one subtraction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Floats, Ints
from fleetune.clock.costs import interpolate_table
from fleetune.errors import Infeasible
from fleetune.solving.hpp.problem import Layer, Problem, warmups
from fleetune.solving.validation import link_matrix

PARAM, ACTIVATION, TRAINABLE, OUTPUT, GRADIENT = range(5)
"""Columns of `InstanceArrays.edge`. The first three sum over all layers before the edge: bytes of weights, activation
bytes per sample, trainable bytes. The last two are bytes per sample across a cut at the edge, forward and backward, 0
at both ends."""


class Span(NamedTuple):
    """Layers [first, end)."""

    first: int
    end: int


class RepeatedBytes(NamedTuple):
    """[first, end]: bytes that sums over layers have too often, of weights that several of them share."""

    weights: Ints
    """All of them."""
    trained: Ints
    awaited: Ints
    """Gradients that a backward holds until those of the other layers have come; not too often, but not in sums."""


class LayerBytes(NamedTuple):
    """The memory model of kind "hpp" and of the planners that use it: running sums over the layers before each edge.

    Edges and samples may be integers, or arrays that broadcast. `sample_allocation` has compiled copies of `state` and
    `max_samples`, which a test compares with these.
    """

    param: Ints
    trainable: Ints
    activation: Ints
    """Per sample."""
    state_per_byte: float
    """Bytes of gradients, optimizer state and snapshots per trainable byte."""
    received_per_byte: int
    """Bytes of messages per trainable byte on each device of a group of several; 0 in problems' own format."""
    repeated: RepeatedBytes | None = None
    """None: layers share no weights."""

    @classmethod
    def of(
        cls,
        layers: Sequence[Layer],
        optimizer_bytes_per_param_byte: float,
        snapshots: int = 0,
        received_per_byte: int = 0,
    ) -> "LayerBytes":
        """Sums over `layers`; snapshots: number of rollback copies of trained parameters and their optimizer state."""
        return cls(
            param=_sums([layer.param_bytes for layer in layers]),
            trainable=_sums([x.param_bytes if x.trainable_bytes is None else x.trainable_bytes for x in layers]),
            activation=_sums([layer.activation_bytes for layer in layers]),
            state_per_byte=(1 + optimizer_bytes_per_param_byte) * (1 + snapshots),
            received_per_byte=received_per_byte,
        )

    def state(self, first: int | Ints, end: int | Ints, members: int = 1) -> Ints:
        """Bytes of weights, gradients, optimizer state and snapshots of layers [first, end), rounded up once, on each
        of the `members` devices of a group; with the messages that sum the gradients, if there are several."""
        trained = self.trainable[end] - self.trainable[first]
        own = np.ceil(trained * self.state_per_byte).astype(np.int64)
        if self.repeated is not None:
            twice = self.repeated.trained[first, end]
            trained = trained - twice
            own = own - np.floor(twice * self.state_per_byte).astype(np.int64) + self.repeated.awaited[first, end]
            own = own - self.repeated.weights[first, end]
        received = self.received_per_byte * trained if members > 1 else 0
        return np.asarray(self.param[end] - self.param[first] + own + received)

    def activations(self, first: int | Ints, end: int | Ints) -> Ints:
        """Bytes per sample that layers [first, end) keep between forward and backward."""
        return np.asarray(self.activation[end] - self.activation[first])

    def peak(self, first: int | Ints, end: int | Ints, kept_samples: int | Ints, members: int = 1) -> Ints:
        """Peak bytes of layers [first, end) on a device of a group: Asteroid eq. (3) plus the rest of `state`.

        kept_samples: samples between forward and backward, min(K, M) times a device's share of a micro-batch.
        """
        return np.asarray(self.state(first, end, members) + kept_samples * self.activations(first, end))

    def max_samples(self, first: Ints, end: Ints, memory_bytes: int, kept: int, batch: int, members: int = 1) -> Ints:
        """Largest share of a micro-batch whose peak fits `memory_bytes` with `kept` micro-batches between forward and
        backward; `batch` at most, 0 where not even the state fits."""
        room, per_sample = memory_bytes - self.state(first, end, members), kept * self.activations(first, end)
        share = np.where(per_sample > 0, room // np.maximum(per_sample, 1), batch)
        return np.asarray(np.clip(np.where(room < 0, 0, share), 0, batch))


class InstanceArrays(NamedTuple):
    """Input of compiled functions; edges 0..L lie before, between and after the L layers."""

    micro_batches: int
    seconds: Floats
    """[device, samples 0..B, edge, 0 forward or 1 backward]: summed over all layers before the edge."""
    best_s: Floats
    """[device, edge]: least forward plus backward seconds per sample of all layers before the edge, each at its best
    batch size; no share of a stage is faster."""
    state_per_byte: float
    """Bytes of gradients, optimizer state and snapshots per trainable byte."""
    received_per_byte: int
    """Bytes of messages per trainable byte on each device of a group of several."""
    edge: Ints
    """[edge, column]"""
    floors: Ints
    """[k]: ascending; the fewest samples of a device that some layer can be trained on, as far as these are above 1."""
    floored: Ints
    """[edge, k]: number of layers before the edge whose fewest samples are `floors[k]`."""
    memory_bytes: Ints
    """[device]"""
    lost_s: Floats
    """[device]: seconds added to a task per byte that it receives or sends."""
    link: Floats
    """[from, to, 2]: bytes per second, infinite on the diagonal; latency in seconds, 0 there."""
    int_scratch: Ints
    """Scratch buffer, [device]; compiled code allocates nothing, which halves its compile time."""
    float_scratch: Floats
    """Scratch buffer, [2, device]."""


class Extras(NamedTuple):
    """What planners know of a problem and its format has no field for; `Instance` says what it means."""

    lost_s_per_byte: tuple[float, ...] = ()
    min_samples: tuple[int, ...] = ()
    received_per_byte: int = 0


class Instance:
    """A problem in a form that planners compute with.

    `lost_s_per_byte` [device] (empty: 0) models devices whose links and layers share a processor: a forward of y
    samples takes so much longer per byte of these samples that crosses the stage's two cuts forward; a backward
    likewise. `min_samples` [layer] (empty: 1): the fewest samples of a micro-batch that a device can have of a stage
    with the layer. Infeasible where a whole micro-batch has fewer. `received_per_byte`: bytes that each device of a
    stage with several needs beside all else, per trainable byte of the stage, for the messages that sum gradients.
    """

    def __init__(
        self,
        problem: Problem,
        lost_s_per_byte: tuple[float, ...] = (),
        min_samples: tuple[int, ...] = (),
        received_per_byte: int = 0,
    ) -> None:
        self.problem = problem
        self.min_samples = np.array(min_samples or [1] * len(problem.layers), np.int64)
        _check_micro_batch(problem, self.min_samples)
        self.layers = len(problem.layers)
        self.devices = len(problem.devices)
        self.samples = problem.micro_batch
        self.micro_batches = problem.micro_batches
        seconds = np.stack([_running(problem, problem.forward_s), _running(problem, problem.backward_s)], axis=-1)
        self.forward_s, self.backward_s = seconds[..., 0], seconds[..., 1]
        self.best_s = _best(self.forward_s + self.backward_s)
        layers = problem.layers
        self.bytes = LayerBytes.of(layers, problem.optimizer_bytes_per_param_byte, problem.snapshots, received_per_byte)
        self.trainable_bytes, self.activation_bytes = self.bytes.trainable, self.bytes.activation
        self.output_bytes = np.array([0, *(layer.output_bytes for layer in layers)], np.int64)
        self.gradient_bytes = np.array(
            [0, *(x.output_bytes if x.gradient_bytes is None else x.gradient_bytes for x in layers)], np.int64
        )
        self.output_bytes[-1] = self.gradient_bytes[-1] = 0
        self.memory_bytes = np.array([device.memory_bytes for device in problem.devices], np.int64)
        self.bandwidth = link_matrix(problem.bandwidth_bytes_per_s, np.inf)
        self.latency_s = link_matrix(problem.latency_s)
        self.lost_s = np.array(lost_s_per_byte or [0.0] * self.devices, np.float64)
        summed = (self.bytes.param, self.bytes.activation, self.bytes.trainable)
        floors = np.unique(self.min_samples[self.min_samples > 1])
        self.arrays = InstanceArrays(
            micro_batches=self.micro_batches,
            seconds=seconds,
            best_s=self.best_s,
            state_per_byte=self.bytes.state_per_byte,
            received_per_byte=received_per_byte,
            edge=np.stack([*summed, self.output_bytes, self.gradient_bytes], axis=-1),
            floors=floors,
            floored=np.concatenate(
                [np.zeros((1, floors.size), np.int64), np.cumsum(self.min_samples[:, None] == floors, axis=0)]
            ),
            memory_bytes=self.memory_bytes,
            lost_s=self.lost_s,
            link=np.stack([self.bandwidth, self.latency_s], axis=-1),
            int_scratch=np.zeros(self.devices, np.int64),
            float_scratch=np.zeros((2, self.devices)),
        )

    @property
    def max_stages(self) -> int:
        """The largest number of stages of any plan."""
        return min(self.layers, self.devices)

    @property
    def max_group(self) -> int:
        """The largest number of devices that can share the samples of a micro-batch whatever the layers of a stage."""
        return self.samples // int(np.max(self.min_samples))

    def least_samples(self, first: int, end: int) -> int:
        """Fewest samples of a micro-batch that a device can have of layers [first, end)."""
        return int(np.max(self.min_samples[first:end]))

    def warmups(self, stages: int) -> list[int]:
        """K of every stage by the problem's policy; `free` starts from the paper's 2(P-p)-1. Refused for any number of
        stages but that of a listed warm-up."""
        policy = self.problem.warmup
        return warmups("2(P-p)-1" if policy == "free" else policy, stages, self.micro_batches)

    def seconds(self, device: int, samples: int, first: int, end: int) -> tuple[float, float]:
        """Forward and backward seconds of layers [first, end) on `samples` samples, work for links included. Summed
        layer by layer as the clock does, so that both round half nanoseconds the same way."""
        y, lost_s = np.array([samples]), float(self.lost_s[device]) * samples
        there, back = (
            sum(
                interpolate_table(self.problem.batch_sizes, np.array(rows[device][first:end], np.float64), y)[
                    :, 0
                ].tolist()
            )
            for rows in (self.problem.forward_s, self.problem.backward_s)
        )
        return (
            there + lost_s * float(self.output_bytes[first] + self.output_bytes[end]),
            back + lost_s * float(self.gradient_bytes[first] + self.gradient_bytes[end]),
        )


def _check_micro_batch(problem: Problem, min_samples: Ints) -> None:
    """Infeasible where a micro-batch has fewer samples than a layer needs."""
    layer = int(np.argmax(min_samples))
    if min_samples[layer] > problem.micro_batch:
        raise Infeasible(
            f"micro_batch: it has {problem.micro_batch}, but layer {problem.layers[layer].name} needs at least "
            f"{min_samples[layer]} samples to be trained; take larger micro-batches"
        )


def whole_model_s(instance: Instance) -> Floats:
    """[device]: seconds of one micro-batch forward and backward through all layers."""
    result: Floats = instance.forward_s[:, -1, -1] + instance.backward_s[:, -1, -1]
    return result


def fastest_devices(instance: Instance, count: int) -> list[int]:
    """The `count` devices that are fastest at the whole model, in their original order; ties go to the earlier."""
    return sorted(np.argsort(whole_model_s(instance), kind="stable")[:count].tolist())


def _running(problem: Problem, seconds: tuple[tuple[tuple[float, ...], ...], ...]) -> Floats:
    """[device, samples 0..B, edge]: running sums over layers."""
    times = interpolate_table(
        problem.batch_sizes, np.array(seconds, np.float64), np.arange(1, problem.micro_batch + 1)
    ).transpose(0, 2, 1)
    result = np.zeros((len(times), problem.micro_batch + 1, len(problem.layers) + 1))
    np.cumsum(times, axis=2, out=result[:, 1:, 1:])
    return result


def _best(both_s: Floats) -> Floats:
    """`InstanceArrays.best_s` from forward plus backward seconds [device, samples, edge]."""
    samples = np.arange(1, both_s.shape[1])
    per_sample = np.min(np.diff(both_s[:, 1:, :], axis=2) / samples[None, :, None], axis=1)
    return np.concatenate([np.zeros((len(both_s), 1)), np.cumsum(per_sample, axis=1)], axis=1)


def _sums(values: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(np.array(values, np.int64))])
