"""What can be said of a strategy before anything is measured for it."""

from collections.abc import Iterator, Sequence
from typing import Any

from fleetune.contracts import wire
from fleetune.contracts.record import one_of
from fleetune.contracts.run_config import StrategyRequest
from fleetune.errors import Refused
from fleetune.planning.solve import strategies
from fleetune.solving.api import kinds

DEVICES = ("device", "devices", "server", "helpers", "clients", "groups", "budgets")
"""Options that name devices, whatever the strategy."""


def prove_request(request: StrategyRequest, devices: Sequence[str] | None, scores: bool) -> None:
    """Refuse an unknown strategy, options and methods that it does not have, devices that the fleet does not have, and
    a strategy that chooses by scores where none are asked for.

    `devices`: those of the fleet; None where others may join it. `scores`: whether heads are scored.
    """
    known = strategies()
    if request.name not in known:
        raise Refused(f"strategy: {request.name!r} is not known; allowed are {', '.join(known)}")
    strategy, owner = known[request.name], f"strategy {request.name}"
    options: Any = wire.load(strategy.options, request.options, owner)
    for option, kind in strategy.methods.items():
        if getattr(options, option) is not None:
            one_of(owner, option, getattr(options, option), kinds()[kind].methods())
    for option in DEVICES if devices is not None else ():
        for name in _names(getattr(options, option, None)):
            one_of(f"{owner}: option {option}", "device", name, devices or ())
    if getattr(strategy, "needs_scores", False) and not scores:
        raise Refused(f"{owner}: it chooses by scores of heads, which nobody asked for; set profile.scores=true")


def _names(value: Any) -> Iterator[str]:
    """Every string in an option, however nested; of a mapping its keys."""
    if isinstance(value, str):
        yield value
    elif value is not None:
        for one in value:
            yield from _names(one)
