"""Warm-up policies: K_p, the number of forwards of segment p of P before its first backward."""

from collections.abc import Callable

from fleetune.errors import Refused

POLICIES: dict[str, Callable[[int, int], int]] = {
    "2(P-p)-1": lambda parts, p: 2 * (parts - p) - 1,
    "2(P-p)": lambda parts, p: 2 * (parts - p),
    "P-p": lambda parts, p: parts - p,
    "2(P-p)+1": lambda parts, p: 2 * (parts - p) + 1,
}
"""Policy name -> K_p. The first is Asteroid's default, which counts every transfer as a pipeline step."""
FREE = "free"
"""The planner chooses K within memory."""


def warmups(policy: str | tuple[int, ...], parts: int, micro_batches: int) -> list[int]:
    """K of every segment, first to last, by a policy's name or as listed.

    Refused: an unknown policy, a list of another length, a K below 1, and a list that, capped at `micro_batches`,
    increases from a segment to the next, which would deadlock: the earlier segment waits for a gradient that the later
    one computes only after further forwards of the earlier one.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise Refused(f"warmup: {policy!r} is not known; allowed are {', '.join(POLICIES)} and a list of integers")
        return [POLICIES[policy](parts, p) for p in range(parts)]
    if len(policy) != parts:
        raise Refused(f"warmup: {list(policy)} has {len(policy)} entries for {parts} segments; give one for each")
    if min(policy) < 1:
        raise Refused(f"warmup: {list(policy)} has an entry below 1; every segment starts with a forward")
    capped = [min(k, micro_batches) for k in policy]
    if capped != sorted(capped, reverse=True):
        raise Refused(f"warmup: {list(policy)} increases towards the last segment, which deadlocks; let it fall")
    return list(policy)
