"""A problem as arrays."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fleetune.arrays import Bools, Ints
from fleetune.solving.split.problem import MATRICES, Problem

MAX_EXACT = 2**52
"""Limit of the clients' total memory in a decimal unit that makes all memories whole."""
FINEST = 2**45
"""Units of the largest memory if there is no such unit."""


class Instance(NamedTuple):
    """Times [helper, client] in the problem's unit; entries that are not `linked` are 0 and meaningless.

    The sum of all times and switch costs is below 2^51 (`problem.MAX_TIME`), so that nothing overflows.
    """

    release: Ints
    """r"""
    forward: Ints
    """p, at least 1."""
    turnaround: Ints
    """l + l': from the end of a client's forward to the earliest start of its backward."""
    backward: Ints
    """p', at least 1."""
    tail: Ints
    """r'"""
    linked: Bools
    """[helper, client], True if no matrix has null there and the client alone fits the helper's memory."""
    helper_memory: Ints
    """[helper], in whole units (see `from_problem`)."""
    client_memory: Ints
    """[client], in the same units."""
    preemptive: bool
    switch_cost: Ints
    """[helper]"""
    turnaround_forward: Ints
    """l alone, for the paper's forward problem."""

    @classmethod
    def from_problem(cls, problem: Problem) -> Instance:
        """Convert a validated problem.

        Memory becomes whole units: exactly if the given decimals allow it, else in FINEST parts of the largest memory,
        rounded so that an excess by floating-point error alone still fits.
        """
        given = {field: getattr(problem, field) for field in MATRICES}
        whole = {
            field: np.array([[0 if x is None else x for x in row] for row in rows], np.int64)
            for field, rows in given.items()
        }
        absent = np.zeros(whole["forward"].shape, bool)
        for rows in given.values():
            absent |= np.array([[x is None for x in row] for row in rows])
        helper_memory, client_memory = _units(problem.helper_memory, problem.client_memory)
        linked = ~absent & (client_memory[None, :] <= helper_memory[:, None])
        times = {field: np.where(linked, matrix, 0) for field, matrix in whole.items()}
        return cls(
            release=times["release"],
            forward=times["forward"],
            turnaround=times["turnaround_forward"] + times["turnaround_backward"],
            backward=times["backward"],
            tail=times["tail"],
            linked=linked,
            helper_memory=helper_memory,
            client_memory=client_memory,
            preemptive=problem.preemptive,
            switch_cost=np.array(problem.switch_cost, np.int64),
            turnaround_forward=times["turnaround_forward"],
        )

    @property
    def helpers(self) -> int:
        """Number of helpers."""
        return int(self.linked.shape[0])

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.linked.shape[1])

    def fits(self, helper: int, clients: list[int]) -> bool:
        """Return True if the helper has memory for all of the clients together."""
        return int(self.client_memory[clients].sum()) <= int(self.helper_memory[helper])


def _units(helpers: tuple[float, ...], clients: tuple[float, ...]) -> tuple[Ints, Ints]:
    """Convert memories to whole units whose sums fit 64 bits."""
    exact = [Fraction(repr(value)) for value in (*helpers, *clients)]
    digits = next((k for k in range(13) if all((x * 10**k).denominator == 1 for x in exact)), None)
    all_clients = sum(exact[len(helpers) :])
    if digits is not None and all_clients * 10**digits <= MAX_EXACT:
        scaled = [int(x * 10**digits) for x in exact]
        largest = max(1, int(all_clients * 10**digits))  # more memory makes no difference
        return (
            np.array([min(x, largest) for x in scaled[: len(helpers)]], np.int64),
            np.array(scaled[len(helpers) :], np.int64),
        )
    finest = min(FINEST, 2**61 // len(clients))  # keeps the total within 64 bits
    enough = min(max(exact[: len(helpers)]), all_clients)
    scale = finest / enough if enough else Fraction(1)
    most = finest + 2 * len(clients)
    return (
        np.array([min(int(x * scale) + len(clients), most) for x in exact[: len(helpers)]], np.int64),
        np.array([min(round(x * scale), most + 1) for x in exact[len(helpers) :]], np.int64),
    )
