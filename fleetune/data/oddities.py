"""What is odd about prepared data and makes scores mean less than they seem to."""

import hashlib
from collections.abc import Mapping

import numpy as np

from fleetune.data.classes import Classes, listed
from fleetune.data.folder import Array
from fleetune.data.splits import TEST, TRAIN, Numbers
from fleetune.data.survey import Survey


def absent_classes(classes: Classes, found: Survey, rows: Numbers) -> tuple[str, ...]:
    """A sentence on the classes that no training row has."""
    if not classes.names:
        return ()
    present = {classes.numbers[found.labels[label]] for label in np.unique(found.label_of[rows])}
    lost = [name for number, name in enumerate(classes.names) if number not in present]
    if not lost:
        return ()
    return (f"no training row is of class {listed(lost)}, so it cannot be learned",)


def shared_rows(arrays: Mapping[str, Mapping[str, Array]], alike: int = 0) -> tuple[str, ...]:
    """A sentence on test rows whose inputs stand among the training rows, `alike` of them before anything was cut."""
    trained = set(_keys(arrays[TRAIN]))
    tested = _keys(arrays[TEST])
    shared = sum(key in trained for key in tested)
    if not shared:
        return ()
    cut = f", {shared - alike} of them only since they were cut or resized" if shared > alike else ""
    return (f"{shared} of {len(tested)} test rows stand in train, too{cut}: scores flatter the model",)


def _keys(split: Mapping[str, Array]) -> list[bytes]:
    """Per row, what stands for its inputs."""
    inputs = [array for name, array in sorted(split.items()) if name != "labels"]
    rows = range(len(inputs[0]))
    return [hashlib.blake2b(b"".join(array[row].tobytes() for array in inputs), digest_size=8).digest() for row in rows]
