"""Messages about memory."""

from collections.abc import Sequence

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.deft.problem import Problem
from fleetune.solving.validation import plural

SHOWN = 8
"""Names in a list."""


def require_allocation(problem: Problem) -> None:
    """Raise Infeasible if there are fewer devices than blocks, or too few with enough memory for some blocks.

    A device that can hold a block can hold every smaller one. So by Hall's theorem it suffices to test the k largest
    blocks for each k: they need k devices with the memory of the smallest of them.
    """
    memory, needs = np.array(problem.memory_bytes), np.array(problem.block_memory_bytes)
    if len(memory) < len(needs):
        raise Infeasible(
            f"{plural(len(memory), 'device')} for {plural(len(needs), 'block')}: each block needs a device of its "
            f"own, and {_listed('block', list(range(len(memory), len(needs))))} would have none; add devices or make "
            f"larger blocks, fewer of them"
        )
    order = np.argsort(-needs, kind="stable")
    largest = np.sort(memory)[::-1][: len(needs)]
    short = np.flatnonzero(needs[order] > largest)
    if short.size:
        raise Infeasible(_too_little(problem, sorted(order[: short[0] + 1].tolist()), float(needs[order[short[0]]])))


def memory_violation(problem: Problem, devices: Sequence[int]) -> str:
    """Name the block that exceeds its device's memory the most; empty if all fit."""
    needs, memory = problem.block_memory_bytes, problem.memory_bytes
    lacks = [need - memory[device] for need, device in zip(needs, devices, strict=True)]
    block = max(range(len(lacks)), key=lacks.__getitem__)
    if lacks[block] <= 0:
        return ""
    device = devices[block]
    return (
        f"device {device} lacks {_bytes(lacks[block])} for block {block}, which needs {_bytes(needs[block])}; "
        f"it has {_bytes(memory[device])}"
    )


def _too_little(problem: Problem, blocks: list[int], need: float) -> str:
    """Describe blocks that need `need` bytes each, of which one device too few has that much."""
    enough = [device for device, has in enumerate(problem.memory_bytes) if has >= need]
    others = [device for device in range(len(problem.memory_bytes)) if device not in set(enough)]
    following = max(others, key=problem.memory_bytes.__getitem__)
    has = problem.memory_bytes[following]
    who = f"only {_listed('device', enough)} {'has' if len(enough) == 1 else 'have'}" if enough else "no device has"
    each = f"block {blocks[0]} needs" if len(blocks) == 1 else f"{_listed('block', blocks)} need at least"
    return (
        f"{each} {_bytes(need)}{'' if len(blocks) == 1 else ' each'}, and {who} that much; device {following} comes "
        f"next with {_bytes(has)} and lacks {_bytes(need - has)}: give a device more memory, add one, or make smaller "
        f"blocks"
    )


def _listed(noun: str, indices: list[int]) -> str:
    """Format a list: `device 2`, `devices 2, 5`, at most SHOWN."""
    shown = ", ".join(map(str, indices[:SHOWN]))
    more = f" and {len(indices) - SHOWN} more" if len(indices) > SHOWN else ""
    return f"{noun}{'' if len(indices) == 1 else 's'} {shown}{more}"


def _bytes(value: float) -> str:
    return "1 byte" if value == 1 else f"{int(value) if value == value // 1 and value < 1e18 else value} bytes"
