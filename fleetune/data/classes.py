"""Which number each label of the data gets: the model's own where it has classes already, else in sorted order."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleetune.data.examples import RawLabel
from fleetune.data.table import Source
from fleetune.errors import Refused

GENERIC = re.compile(r"LABEL_\d+")
"""What transformers calls classes that nobody named."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of a data set for a model."""

    names: tuple[str, ...]
    """By number."""
    numbers: Mapping[RawLabel, int]
    """label as the source spells it -> number."""
    notes: tuple[str, ...] = ()
    """What a reader should know about how the two were matched."""


def number_classes(found: frozenset[RawLabel], source: Source, known: tuple[str, ...]) -> Classes:
    """Number the labels found in a source; `known` are the model's classes, empty for a new head.

    Refused: fewer than two labels, strings mixed with whole numbers, and columns of fractions.
    """
    owner, column = source.train[0].owner, source.label_column
    if len(found) < 2:
        only = next(iter(found), None)
        raise Refused(f"{owner}: every row has the label {only!r} in column {column!r}; a classifier needs two or more")
    spelled = _named(found, source) or _sorted(found, owner, column)
    if known:
        return _as_the_model(spelled, known)
    names = tuple(dict.fromkeys(spelled.values()))
    return Classes(names=names, numbers={label: names.index(name) for label, name in spelled.items()})


def listed(names: Iterable[str]) -> str:
    """The first few names, for a message."""
    every = tuple(names)
    return ", ".join(every[:SHOWN]) + (f" and {len(every) - SHOWN} more" if len(every) > SHOWN else "")


def _named(found: frozenset[RawLabel], source: Source) -> dict[RawLabel, str]:
    """label -> name where the source itself gives names to numbers, in its order."""
    owner, column = source.train[0].owner, source.label_column
    named = source.train[0].names(column)
    outside = sorted(str(label) for label in found if not isinstance(label, int) or not 0 <= label < len(named))
    if named and outside:
        raise Refused(f"{owner}: label {outside[0]} in column {column!r} is not one of the {len(named)} named ones")
    return dict(enumerate(named))


def _sorted(found: frozenset[RawLabel], owner: str, column: str) -> dict[RawLabel, str]:
    """label -> name, sorted; as numbers where all labels are numbers."""
    if len({type(label) for label in found}) > 1:
        raise Refused(f"{owner}: column {column!r} mixes strings and whole numbers; spell all labels alike")
    spelled = {label: _whole(label, found, owner, column) for label in found}
    numeric = all(re.fullmatch(r"-?\d+", name, re.ASCII) for name in spelled.values())
    return dict(sorted(spelled.items(), key=lambda item: (int(item[1]) if numeric else 0, item[1], str(item[0]))))


def _whole(label: RawLabel, found: frozenset[RawLabel], owner: str, column: str) -> str:
    """The name of a label: 1.0 is class 1 where every label is a number, as in a CSV column of floats."""
    texts = [text for text in found if isinstance(text, str)]
    floats = any("." in text or "e" in text.lower() for text in texts)
    if not texts or not floats or not all(NUMBER.fullmatch(text) for text in texts):
        return str(label)
    value = float(label)
    if not value.is_integer():
        raise Refused(
            f"{owner}: label {label!r} in column {column!r} is a fraction, and regression is not there yet; give whole "
            "numbers, or names that are no numbers"
        )
    return str(int(value))


def _as_the_model(spelled: Mapping[RawLabel, str], known: tuple[str, ...]) -> Classes:
    """Keep the model's order of classes where data and model agree; say what was done where they do not."""
    unnamed = all(GENERIC.fullmatch(name) for name in known)
    names = tuple(dict.fromkeys(spelled.values()))
    if set(names) <= set(known):
        return Classes(names=known, numbers={label: known.index(name) for label, name in spelled.items()})
    whole = {label: int(name) for label, name in spelled.items() if re.fullmatch(r"\d+", name, re.ASCII)}
    if len(whole) == len(spelled) and max(whole.values()) < len(known):
        meant = "" if unnamed else "labels are numbers and count as the model's own: "
        said = (meant + listed(f"{number} {name}" for number, name in enumerate(known)),) if meant else ()
        return Classes(names=tuple(map(str, range(len(known)))) if unnamed else known, numbers=whole, notes=said)
    order = _shared_first(names, known) if len(names) == len(known) else names
    return Classes(
        names=order,
        numbers={label: order.index(name) for label, name in spelled.items()},
        notes=(
            f"labels of the data ({listed(order)}) are not the classes of the model ({listed(known)}): "
            + ("its classes now stand for them" if len(names) == len(known) else "its head does not fit them"),
        ),
    )


def _shared_first(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """As many names as the model has: those it knows keep their numbers, the others take what is free, in order."""
    others = iter(name for name in names if name not in known)
    return tuple(name if name in names else next(others) for name in known)
