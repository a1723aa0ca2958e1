"""Cuts of parallel split learning by the names of the units before them."""

from fleetune.errors import Refused
from fleetune.planning.layers import cut_places
from fleetune.planning.split_problem import Cuts
from fleetune.planning.strategy import Problem


def cuts_at(problem: Problem, named: tuple[str, str]) -> Cuts:
    """Return the cuts behind two units. Refused: units that the model does not have, or cannot be cut after."""
    first, second = (_place_of(problem, name) + 1 for name in named)
    places = cut_places(problem.profile.units)[1:-1]
    for name, place in zip(named, (first, second), strict=True):
        if place not in places:
            raise Refused(f"split-learning: the model cannot be cut after unit {name}; choose another")
    if first >= second:
        raise Refused(f"split-learning: cuts {list(named)} leave nothing between them; name an earlier unit first")
    return Cuts(first, second)


def _place_of(problem: Problem, name: str) -> int:
    """Return the place of a unit by its name or the end of it, such as `layer.1`: reports leave prefixes out."""
    names = [unit.name for unit in problem.profile.units]
    if name in names:
        return names.index(name)
    found = [place for place, each in enumerate(names) if each.endswith(f".{name}")]
    if len(found) != 1:
        said = "is the end of several units' names" if found else "is no unit of the model"
        raise Refused(f"split-learning: cuts: {name} {said}; give two of {', '.join(names)}")
    return found[0]
