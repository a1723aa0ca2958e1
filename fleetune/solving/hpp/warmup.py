"""K_p, the forwards of segment p of P before its first backward."""

from collections.abc import Callable

from fleetune.errors import Refused

POLICIES: dict[str, Callable[[int, int], int]] = {
    "2(P-p)-1": lambda parts, p: 2 * (parts - p) - 1,
    "2(P-p)": lambda parts, p: 2 * (parts - p),
    "P-p": lambda parts, p: parts - p,
    "2(P-p)+1": lambda parts, p: 2 * (parts - p) + 1,
}
"""Asteroid's default first: every transfer between segments counts as a step of the pipeline of its own."""
FREE = "free"
"""Not a policy but the wish to have K chosen within memory."""


def warmups(policy: str | tuple[int, ...], parts: int, micro_batches: int) -> list[int]:
    """K of every segment, first to last, by a policy's name or as listed.

    Refused: an unknown policy, a list of another length, a K below 1, and a list that, capped at the number of
    micro-batches, increases from a segment to the next: the earlier one would wait for a gradient that cannot come.
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
