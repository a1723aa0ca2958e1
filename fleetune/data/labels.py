"""Label mapping: assigns class ids to labels, the model's own ids where it has classes, else in sorted order."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.tasks import predicts_labels, predicts_number
from fleetune.data.class_features import composed, meant, visible
from fleetune.data.examples import SEPARATOR, Example, RawLabel
from fleetune.data.prepared_data import LABELS, Array, ArrayInfo
from fleetune.data.public_words import Told
from fleetune.data.tables import DataSource
from fleetune.formatting import shortlist

UNNAMED_CLASS = re.compile(r"LABEL_\d+")
"""Placeholder names that transformers gives to unnamed classes."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
EXPONENT = re.compile(NUMBER.pattern + r"[eE][+-]?\d+", re.ASCII)
WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0*)?", re.ASCII)
"""A whole number as a column of whole numbers or of floats has it."""
JOINT, SIGN = re.compile(r"[,;/|&+\s]+"), re.compile("[,;/|]")
"""What some files put between the labels of a row, and those of it that names seldom hold."""
LISTED, QUOTED = re.compile(r"""[\[({]\s*(['"]).*\1\s*,?\s*[\])}]"""), re.compile(r"""(['"])(.*?)\1""")
"""A list of names as a program writes it, and a name in it."""
MISSING = re.compile(r"nan|NaN|NAN|null|NULL|None|NA|N/A|<NA>|-|\?")
"""What programs write for a value that is not there; SNLI and UCI's files have the last two."""
UNKNOWN = "-1"
"""What many data sets give rows that have no class."""


@dataclass(frozen=True, kw_only=True)
class LabelMapping:
    """Class ids of a data set for a model."""

    names: tuple[str, ...]
    """Class names by id."""
    label_ids: Mapping[RawLabel, int]
    """label as the source spells it -> class id."""
    ids_by_name: Mapping[str, int] = field(default_factory=dict)
    """label as all sources together spell it -> class id."""
    notes: tuple[str, ...] = ()
    """Remarks for the user about how data and model classes were matched, a sentence each."""


def map_labels(
    found: Mapping[RawLabel, int],
    source: DataSource,
    spec: InputSpec,
    others: Iterable[str] = (),
    several: bool = False,
    tested: bool = False,
) -> LabelMapping:
    """Assign class ids to the labels found in a source: the model's, unless its head is new.

    found: label -> its rows. others: names of labels in sources that lie elsewhere; all together are sorted then.
    several: a sample may have several labels. tested: nothing is trained, so that one label is enough, and others than
    those of the model are its caller's to refuse.
    Raises Refused for too few labels, for names mixed with integers, and for columns of fractions.
    """
    table_name, column, known = source.train[0].name, source.label_column, spec.labels
    spelled = spell_labels(frozenset(found), source)
    union = sorted({*spelled.values(), *others}, key=_order) if others else list(dict.fromkeys(spelled.values()))
    _check_alike(table_name, column, union)
    unknown_notes = () if UNKNOWN in known else _unknown_notes(table_name, column, union, found, spelled)
    least = 1 if several or tested else 2
    if least == 1 and not union:
        raise Told("{}: no row has a label in column {column!r}; give some of them one", table_name, column=column)
    if len(union) < least:
        only = next(iter(found), None)
        raise Told(
            "{}: every row has the label {!r} in column {column!r}; a classifier needs two or more",
            table_name,
            only,
            column=column,
        )
    by_name: dict[RawLabel, str] = {name: name for name in union}
    matched = _match_model(by_name, spec, table_name, tested) if known else None
    ids = matched.label_ids if matched else {name: number for number, name in enumerate(union)}
    return LabelMapping(
        names=matched.names if matched else tuple(union),
        label_ids={label: ids[name] for label, name in spelled.items()},
        ids_by_name={str(name): number for name, number in ids.items()},
        notes=(
            *(matched.notes if matched else ()),
            *unknown_notes,
            *_case_notes(union),
            *_missing_notes(union),
            *_joined_notes(union, several=several),
        ),
    )


def spell_labels(found: frozenset[RawLabel], source: DataSource) -> dict[RawLabel, str]:
    """Return label as the source has it -> its name, in the order of class ids.

    Raises Refused for names mixed with integers, and for columns of fractions.
    """
    return _names_from_source(found, source) or _sorted_names(found, source.train[0].name, source.label_column)


def _check_alike(table_name: str, column: str, names: Iterable[str]) -> None:
    """Refuse names that differ only in what nobody sees, or in how they spell a number."""
    seen: dict[Decimal | str, str] = {}
    for name in names:
        said = meant(name)
        other = seen.setdefault(said, name)
        if other != name:
            raise Told(
                "{}: labels {} and {} in column {column!r} {alike}; spell all labels alike",
                table_name,
                ascii(other),
                ascii(name),
                column=column,
                alike="are one number" if isinstance(said, Decimal) else "look alike",
            )


def _unknown_notes(
    table_name: str, column: str, names: list[str], found: Mapping[RawLabel, int], spelled: Mapping[RawLabel, str]
) -> tuple[str, ...]:
    """Return a sentence that names -1 beside numbers from 0; Refused where few rows have it."""
    whole = [int(name) for name in names if is_whole_number(name)]
    if UNKNOWN not in names or min(whole) != int(UNKNOWN) or 0 not in whole or len(whole) != len(names):
        return ()
    rows = Counter[str]()
    for label, count in found.items():
        rows[spelled[label]] += count
    if rows[UNKNOWN] and 10 * rows[UNKNOWN] >= min(rows[name] for name in names if name != UNKNOWN):
        return ("label -1 is a class like the others; if it stands for none, leave its rows out",)
    raise Told(
        "{}: column {column!r} has label -1 beside those from 0, in less than a tenth of the rows of any other; if it "
        "is a class (as negative, beside neutral and positive), give the classes names, or numbers from 0; if its rows "
        "have none, leave them out",
        table_name,
        column=column,
    )


def _case_notes(names: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence that names classes which differ in capital letters alone; empty if there are none."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(visible(name).casefold(), name)
        if other != name:
            return (f"labels {other!r} and {name!r} differ in capital letters alone and are two classes",)
    return ()


def _missing_notes(names: Collection[str]) -> tuple[str, ...]:
    """Return a sentence that names a class which may be none; empty if there is none."""
    named = [name for name in names if MISSING.fullmatch(name) and not (name == "-" and "+" in names)]
    return (
        (f"label {named[0]!r} is a class like the others; if it stands for none, leave its rows out",) if named else ()
    )


def _joined_notes(names: Iterable[str], several: bool) -> tuple[str, ...]:
    """Return a sentence that names a class whose name is made of others; empty if there is none.

    several: whether rows have several labels. Then one other label beside a comma tells enough.
    """
    every, joined = set(names), []
    for name in sorted(every):
        listed, parts = LISTED.fullmatch(name), _parts(name)
        hinted = several and not every.isdisjoint(parts) and SIGN.search(name) is not None
        if len(parts) > 1 and (listed or every.issuperset(parts) or hinted) or listed and every.issuperset(parts):
            joined.append(name)
    if not joined:
        return ()
    return (
        f"labels such as {joined[0]!r} are classes of their own beside those that they are made of; where a row has "
        f"several labels, set model.task to a multi-label one and write {SEPARATOR.join(_parts(joined[0]))}, or a list",
    )


def _parts(name: str) -> list[str]:
    """The names that a label joins; itself: none."""
    if LISTED.fullmatch(name):
        return [each for _, each in QUOTED.findall(name)]
    return [each for each in JOINT.split(name.strip("[](){}")) if each]


def is_whole_number(name: str) -> bool:
    """Return whether a label's name is a whole number."""
    return re.fullmatch(r"-?\d+", name, re.ASCII) is not None


def _order(name: str) -> tuple[int, int, str]:
    """Sort key of names: whole numbers by value, then the others."""
    return (0, int(name), name) if is_whole_number(name) else (1, 0, name)


def _names_from_source(found: frozenset[RawLabel], source: DataSource) -> dict[RawLabel, str]:
    """label -> name if tables of the source name their classes, in the order of the first that does; else empty."""
    column = source.label_column
    named = [names for table in source.tables if (names := table.class_names(column))]
    every = dict.fromkeys(name for names in named for name in names)
    others = sorted(found - every.keys(), key=str) if named else []
    spelled: dict[RawLabel, str] = {name: name for name in every}
    return spelled | {label: _numbered_name(label, source, named) for label in others}


def _numbered_name(label: RawLabel, source: DataSource, named: list[tuple[str, ...]]) -> str:
    """Name of a label that another table names by its number."""
    names = named[0]
    number = int(label) if re.fullmatch(r"0|[1-9]\d*", str(label), re.ASCII) else -1
    numbered = any(map(is_whole_number, names))  # then it may be meant as a name, too
    if not 0 <= number < len(names) or (numbered and names[number] != str(label)):
        raise Told(
            "{}: label {!r} in column {column!r} is not one of the {} named ones ({}); spell all labels alike",
            source.train[0].name,
            label,
            len(names),
            shortlist(names),
            column=source.label_column,
        )
    if any(other != names for other in named):
        raise Told(
            "{}: label {!r} in column {column!r} is a number, and the files number their classes differently ({}; {}); "
            "give the classes by name",
            source.train[0].name,
            label,
            shortlist(names),
            shortlist(next(other for other in named if other != names)),
            column=source.label_column,
        )
    return names[number]


def _sorted_names(found: frozenset[RawLabel], table_name: str, column: str) -> dict[RawLabel, str]:
    """label -> name, sorted; numerically if all labels are numbers. The number 1 and the text "1" are one class."""
    texts = [label for label in found if isinstance(label, str)]
    missing = sorted(filter(MISSING.fullmatch, texts))
    if 0 < len(missing) < len(found) and all(
        NUMBER.fullmatch(text) or EXPONENT.fullmatch(text) for text in set(texts) - {*missing}
    ):
        raise Told(
            "{}: label {!r} in column {column!r}, among numbers, stands for none; fill it or leave its rows out",
            table_name,
            missing[0],
            column=column,
        )
    if 0 < len(texts) < len(found) and not all(map(NUMBER.fullmatch, texts)):
        raise Told(
            "{}: column {column!r} mixes strings and whole numbers; spell all labels alike",
            table_name,
            column=column,
        )
    spelled = {label: _integer_name(label, texts, table_name, column) for label in found}
    numeric = all(map(is_whole_number, spelled.values()))
    return dict(sorted(spelled.items(), key=lambda item: (int(item[1]) if numeric else 0, item[1], str(item[0]))))


def _integer_name(label: RawLabel, texts: list[str], table_name: str, column: str) -> str:
    """Name of a label; "1.0" becomes 1 if all labels are numbers, as in a CSV column of floats."""
    numbers = all(NUMBER.fullmatch(text) or EXPONENT.fullmatch(text) for text in texts)
    floats = numbers and any("." in text for text in texts)
    if isinstance(label, int) or not floats:
        return str(label)
    if NUMBER.fullmatch(label) and not float(label).is_integer():
        raise Told(
            "{}: label {!r} in column {column!r} is a fraction; give integers or class names, or set model.task to "
            "learn numbers (sequence-regression, image-regression)",
            table_name,
            label,
            column=column,
        )
    whole = WHOLE.fullmatch(label)
    if whole is None:
        raise Told(
            "{}: label {!r} in column {column!r} is among numbers, and written unlike them; spell all labels alike, "
            "such as 1 or 1.0",
            table_name,
            label,
            column=column,
        )
    return "0" if whole[1] == "-0" else whole[1]


def _match_model(spelled: Mapping[RawLabel, str], spec: InputSpec, table_name: str, tested: bool) -> LabelMapping:
    """Keep the model's class order where data and model agree; add a note where they do not, or refuse to train other
    classes than an earlier run has learned."""
    known = spec.labels
    unnamed = all(UNNAMED_CLASS.fullmatch(name) for name in known)
    names = tuple(dict.fromkeys(spelled.values()))
    plain = list(map(composed, known))
    if set(names) <= set(plain):
        return LabelMapping(names=known, label_ids={label: plain.index(name) for label, name in spelled.items()})
    folded, own = [name.casefold() for name in plain], {label: name.casefold() for label, name in spelled.items()}
    if set(own.values()) <= set(folded) and len(set(folded)) == len(folded) and len(set(own.values())) == len(names):
        return LabelMapping(
            names=known,
            label_ids={label: folded.index(name) for label, name in own.items()},
            notes=(f"labels are the model's classes in other capital letters, and get its names: {shortlist(known)}",),
        )
    whole = {label: int(name) for label, name in spelled.items() if re.fullmatch(r"0|[1-9]\d*", name, re.ASCII)}
    fits = len(whole) == len(spelled) and max(whole.values()) < len(known)
    fits = fits and not (spec.continued and any(map(is_whole_number, known)))  # which are names, and not its 1st, 2nd
    if fits and (unnamed or spec.numbered or len(set(whole.values())) == len(known)):  # 1 to 102 are not ImageNet's
        meant = "" if unnamed else "labels are numbers and count as the model's own: "
        said = (meant + shortlist(f"{number} {name}" for number, name in enumerate(known)),) if meant else ()
        return LabelMapping(names=tuple(map(str, range(len(known)))) if unnamed else known, label_ids=whole, notes=said)
    if spec.continued and not tested:
        raise Told(
            "{}: the earlier run that this one starts from did not learn labels {} (it has {}), and a head for them "
            "would begin anew, or give them the places of others; begin from the base model (with promote: under "
            "another name of the run), leave their rows out, or, for a new head of another number of classes, give all "
            "as model.config.id2label",
            table_name,
            shortlist([name for name in names if not {name, name.casefold()} & {*plain, *folded}] or names),
            shortlist(known),
        )
    order = _shared_names_first(names, tuple(plain)) if len(names) == len(known) else names
    return LabelMapping(
        names=order,
        label_ids={label: order.index(name) for label, name in spelled.items()},
        notes=(
            f"labels of the data ({shortlist(order)}) are not the classes of the model ({shortlist(known)}): "
            + ("its classes are renamed to them" if len(names) == len(known) else "its head does not fit them")
            + ("; if they are its classes by number, give model.config.id2label" if fits else ""),
        ),
    )


def _shared_names_first(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Order as many names as the model has: names it knows keep their ids, the others fill the free ids in order."""
    others = iter(name for name in names if name not in known)
    return tuple(name if name in names else next(others) for name in known)


def absent_class_notes(classes: LabelMapping, labels: Array) -> tuple[str, ...]:
    """Return a sentence that names the classes without a training row; empty if there is none.

    labels: of the training rows, as `label_info` describes them.
    """
    present = set(np.flatnonzero(labels.any(axis=0)) if labels.ndim > 1 else np.unique(labels))
    lost = [name for number, name in enumerate(classes.names) if number not in present]
    if not lost:
        return ()
    return (f"no training row is of class {shortlist(lost)}, so it cannot be learned",)


def unowned_class_notes(classes: LabelMapping, owned: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence that names the classes of which no device has a row. owned: names of the devices' labels."""
    present = {classes.ids_by_name[name] for name in owned}
    lost = [name for number, name in enumerate(classes.names) if number not in present]
    return (f"no device has a row of class {shortlist(lost)}, so it cannot be learned",) if lost else ()


def label_info(samples: int, task: str, classes: LabelMapping) -> ArrayInfo:
    """Describe the array of labels: classes [samples], numbers [samples], or [samples, classes] of 0 and 1."""
    if predicts_number(task):
        return ArrayInfo(name=LABELS, dtype="float32", shape=(samples,))
    if predicts_labels(task):
        return ArrayInfo(name=LABELS, dtype="float32", shape=(samples, len(classes.names)))
    return ArrayInfo(name=LABELS, dtype="int32", shape=(samples,))


def label_array(chunk: list[Example], task: str, classes: LabelMapping) -> Array:
    """Return the labels of a chunk, as `label_info` describes them; class ids as int64."""
    if predicts_number(task):
        return np.asarray([example.label for example in chunk], dtype=np.float32)
    if predicts_labels(task):
        rows = np.zeros((len(chunk), len(classes.names)), dtype=np.float32)
        for row, example in enumerate(chunk):
            assert isinstance(example.label, tuple)
            rows[row, [classes.label_ids[each] for each in example.label]] = 1.0
        return rows
    return np.asarray([classes.label_ids[x.label] for x in chunk if isinstance(x.label, str | int)], dtype=np.int64)
