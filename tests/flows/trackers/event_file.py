"""Reads TensorBoard event files as their format says: records with checksums, each an `Event`."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c


def events_of(folder: Path) -> list[Event]:
    """Every event of the files in a folder, in the order of a reader; a checksum that is wrong fails."""
    return [event for path in sorted(folder.glob("*tfevents*")) for event in _events(path.read_bytes())]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Name -> step and value of each point in a folder of event files."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events_of(folder):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def _events(content: bytes) -> list[Event]:
    found, at = [], 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        (of_size,) = struct.unpack_from("<I", content, at + 8)
        record = content[at + 12 : at + 12 + size]
        (of_record,) = struct.unpack_from("<I", content, at + 12 + size)
        assert of_size == masked_crc32c(content[at : at + 8])
        assert of_record == masked_crc32c(record)
        found.append(Event.FromString(record))
        at += 12 + size + 4
    return found
