"""The header of a device's `ready`: what it reports of a round, checked before anything is made of it."""

from collections.abc import Collection, Mapping
from typing import Any

from fleetune.errors import Refused
from fleetune.training.gradients import total_norm

Fields = Mapping[str, Any]


def check_report(device: str, header: Fields, lanes: Collection[str]) -> None:
    """Refuse a report whose fields cannot be read, or tell of lanes that the plan does not have."""
    try:
        _check_names(header["losses"], lanes)
        _check_names(header["norms"], lanes)
        _check_names(dict.fromkeys(header.get("overflowed", ())), lanes)
        total_norm(header["norms"].values())
        numbers = [header["peak_memory_bytes"], header.get("loss_scale", 1.0)]
        for number in (*numbers, *header["losses"].values(), *header["sent_bytes"].values()):
            if type(number) not in (int, float):
                raise TypeError(f"{str(number)[:40]!r} is no number")
            float(number)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise Refused(f"device {device} reports a round with fields that cannot be read ({error})") from None


def _check_names(found: Fields, known: Collection[str]) -> None:
    for name in found.keys() - set(known):
        raise ValueError(f"{str(name)[:40]!r} is not in its plan")
