"""Holdings: the newest version that is whole, and what must move."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.contracts.plan import Backup, Lane, Plan, Segment, Share
from fleetune.errors import Infeasible, Refused
from fleetune.recovery.holdings import (
    BACKUP,
    INITIAL,
    LIVE,
    PREPARED,
    SNAPSHOT,
    Attempt,
    History,
    Holding,
    Need,
    Restoration,
    SentBackup,
    UnitItems,
    Version,
    backups_of,
    needs_of,
    restoration,
)
from fleetune.recovery.transfers import DISK, Item

FIRST, SECOND = Attempt(1, 1), Attempt(1, 2)
DEVICES = ("a", "b", "c", "d")
LINKS = {(source, target): 10.0 for source in DEVICES for target in DEVICES if source != target}
W, X, Y, Z = (Item("main", name) for name in "wxyz")
SIZES = {W: 40, X: 30, Y: 20, Z: 10}


def history(*attempts: Attempt) -> History:
    """The history of rounds that these attempts committed, one each."""
    found = History()
    for round, attempt in enumerate(attempts):
        found = found.committed(round, attempt)
    return found


def held(device: str, version: Version, *items: Item, form: str = LIVE) -> Holding:
    return Holding(device=device, version=version, form=form, items=frozenset(items))


def need(device: str, *items: Item, form: str = LIVE) -> Need:
    return Need(device=device, items=frozenset(items), form=form)


def moved(found: Restoration) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(each.source, each.target, each.names) for each in found.transfers}


def test_a_live_version_comes_from_a_backup_where_its_owner_is_lost() -> None:
    """Device a is lost; b has its backup and c takes over a part of it: only what c lacks moves, once."""
    log = history(FIRST, FIRST)
    found = restoration(
        [held("b", log.version, Y), held("b", log.version, W, X, form=BACKUP), held("c", log.version, Z)],
        [need("b", W, Y), need("c", X, Z)],
        log,
        [INITIAL],
        SIZES,
        LINKS,
    )
    assert (found.version, found.reads_checkpoint, found.reason) == (log.version, False, "")
    assert moved(found) == {("b", "c", ("x",))}
    assert found.transfers[0].bytes == SIZES[X]


def test_what_is_prepared_counts_only_if_it_is_logged() -> None:
    """Of two workers one has applied round 1 and one has only prepared it: whether it is logged decides for both."""
    old, new = history(FIRST), history(FIRST, FIRST)
    reported = [
        held("a", new.version, W),
        held("b", old.version, X),
        held("b", new.version, X, form=PREPARED),
        held("a", old.version, W, form=SNAPSHOT),
    ]
    needs = [need("a", W), need("b", X)]
    logged = restoration(reported, needs, new, [INITIAL], SIZES, LINKS)
    assert (logged.version, logged.rolls_forward) == (new.version, ("b",))
    unlogged = restoration(reported, needs, old, [INITIAL], SIZES, LINKS)
    assert (unlogged.version, unlogged.rolls_forward) == (old.version, ())


def test_rounds_that_were_run_again_are_another_version() -> None:
    """A device that comes back with a round that was rolled back since does not complete the version of that round."""
    before = history(FIRST, FIRST)
    after = before.rewound(1).committed(1, SECOND)
    assert before.version not in after and after.version not in before
    assert before.rewound(1).version in after
    found = restoration(
        [held("a", before.version, W), held("b", after.version, X)],
        [need("a", W), need("b", X)],
        after,
        [INITIAL],
        SIZES,
        LINKS,
    )
    assert found.version == INITIAL and not found.transfers


def test_the_newest_whole_version_says_why_it_is_not_the_newest() -> None:
    """Without a holder of w at version 2, version 1 is taken from snapshots, and the reason names w."""
    log = history(FIRST, FIRST)
    one = log.rewound(1).version
    reported = [
        held("a", log.version, X),
        held("a", one, X, form=SNAPSHOT),
        held("a", one, W, form=BACKUP),
    ]
    found = restoration(reported, [need("a", W, X)], log, [INITIAL], SIZES, LINKS)
    assert found.version == one and not found.reads_checkpoint and "main/w" in found.reason


@pytest.mark.parametrize(("disk", "reads"), [(0, False), (1, False), (2, True)])
def test_the_newer_of_memory_and_disk_is_taken_and_memory_if_they_are_alike(disk: int, reads: bool) -> None:
    """Version 1 is whole in memory; a checkpoint is used only if it is newer, so a rewind never passes one."""
    log = history(FIRST, FIRST, FIRST)
    one = log.rewound(1).version
    on_disk = [INITIAL, log.rewound(disk).version]
    found = restoration([held("a", one, W)], [need("a", W)], log, on_disk, SIZES, LINKS)
    assert (found.version.rounds, found.reads_checkpoint) == (max(1, disk), reads)
    assert "main/w" in found.reason


def test_of_a_checkpoint_only_that_is_read_which_no_device_can_send() -> None:
    """Both are at version 1, whose checkpoint is on disk: x comes from b, w, whose holder is lost, from the disk."""
    log = history(FIRST)
    reported = [held("a", log.version, Y), held("b", log.version, X)]
    found = restoration(reported, [need("a", W, X, Y)], log, [INITIAL, log.version], SIZES, LINKS)
    assert found.version == log.version and moved(found) == {("b", "a", ("x",)), (DISK, "a", ("w",))}


def test_an_item_without_a_link_to_the_device_that_needs_it_is_lost() -> None:
    """The only holder cannot reach the device, so that the version is not whole; without a disk there is none."""
    log = history(FIRST)
    links = {pair: rate for pair, rate in LINKS.items() if pair != ("a", "b")}
    with pytest.raises(Infeasible, match="no version is whole"):
        restoration([held("a", log.version, W)], [need("b", W)], log, [], SIZES, links)


def test_a_start_from_the_initial_weights_needs_no_excuse() -> None:
    """Before the first round nothing is lost: all devices read the initial weights."""
    found = restoration([], [need("a", W)], History(), [INITIAL], SIZES, LINKS)
    assert found == Restoration(version=INITIAL)


def test_a_history_takes_rounds_in_order_and_of_no_older_attempt() -> None:
    """A commit out of order, twice, or of an older attempt is refused, as is a rewind beyond the end."""
    log = history(FIRST, SECOND)
    for round, attempt in ((1, SECOND), (3, SECOND), (2, FIRST)):
        with pytest.raises(Refused, match="commit log"):
            log.committed(round, attempt)
    with pytest.raises(Refused, match="commit log"):
        log.rewound(3)
    assert log.rewound(2) == log and log.rewound(0) == History()


ITEMS = (W, X, Y)
VERSIONS = tuple(history(*[FIRST] * rounds).version for rounds in range(1, 4))
LOG = history(FIRST, FIRST, FIRST)
PLACES = st.frozensets(st.tuples(st.sampled_from(DEVICES[:3]), st.sampled_from(VERSIONS), st.sampled_from(ITEMS)))
WANTED = st.frozensets(st.tuples(st.sampled_from(DEVICES[:3]), st.sampled_from(ITEMS)), min_size=1)


@settings(max_examples=300, deadline=None)
@given(PLACES, WANTED, st.sampled_from((0, 1, 2, 3)))
def test_restoration_agrees_with_brute_force(
    places: frozenset[tuple[str, Version, Item]], wanted: frozenset[tuple[str, Item]], disk: int
) -> None:
    """On small instances: the newest version that any choice of sources completes, and the least bytes of all.

    Every item comes from a device that holds that very version, exactly once and to where it is missing.
    """
    holdings = [held(device, version, item) for device, version, item in places]
    on_disk = [INITIAL, LOG.rewound(disk).version]
    found = restoration(holdings, [need(device, item) for device, item in wanted], LOG, on_disk, SIZES, LINKS)
    expected, least = 0, 0
    for version in VERSIONS:
        bytes_of = least_bytes(version, places, wanted)
        if bytes_of is not None:
            expected, least = version.rounds, bytes_of
    assert found.version.rounds == max(expected, disk)
    assert found.reads_checkpoint == (disk > expected and any((d, found.version, i) not in places for d, i in wanted))
    received = [(each.target, Item(each.lane, name)) for each in found.transfers for name in each.names]
    assert len(received) == len(set(received)) and set(received) <= wanted
    for each in found.transfers:
        for item in (Item(each.lane, name) for name in each.names):
            held_at = {device for device, version, it in places if (version, it) == (found.version, item)}
            assert each.source in held_at or (each.source == DISK and not held_at)
    if not found.reads_checkpoint:
        assert sum(each.bytes for each in found.transfers) == least
    if found.version != INITIAL:
        assert all((d, found.version, i) in places or (d, i) in received for d, i in wanted)


def least_bytes(
    version: Version, places: frozenset[tuple[str, Version, Item]], wanted: frozenset[tuple[str, Item]]
) -> int | None:
    """Least bytes that complete a version, of all choices of a holder per wanted item; None if none does."""
    choices = [[holder for holder, at, held in places if (at, held) == (version, item)] for _, item in wanted]
    costs = [
        sum(SIZES[item] for (device, item), holder in zip(wanted, picked, strict=True) if holder != device)
        for picked in product(*choices)
    ]
    return min(costs, default=None)


def segment(unit: str, *devices: str) -> Segment:
    shares = tuple(Share(device=device, samples=4 // len(devices)) for device in devices)
    return Segment(units=(unit,), shares=shares, warmup=1)


def made(*lanes: Lane, **fields: Any) -> Plan:
    return Plan(strategy="asteroid", micro_batch_samples=4, micro_batches=1, lanes=lanes, **fields)


UNITS: Mapping[str, UnitItems] = {
    "u": UnitItems(trained=("w",), buffers=("m",)),
    "v": UnitItems(trained=("x",)),
    "t": UnitItems(trained=("y",)),
}


def by_device(needs: tuple[Need, ...], form: str) -> dict[str, set[str]]:
    return {each.device: {str(item) for item in each.items} for each in needs if each.form == form}


def test_backups_are_held_beside_what_is_live() -> None:
    """The holder of a segment's backup needs all that training changes of it, but for what it trains itself."""
    chain = Lane(name="main", segments=(segment("u", "a"), segment("v", "b", "c"), segment("t", "d")))
    kept = (Backup(lane="main", segment=0, holder="b"), Backup(lane="main", segment=2, holder="a"))
    needs = needs_of(made(chain, backups=kept, backup_every_rounds=1), UNITS)
    live = {"a": {"main/w", "main/m"}, "b": {"main/x"}, "c": {"main/x"}, "d": {"main/y"}}
    assert by_device(needs, LIVE) == live
    assert by_device(needs, BACKUP) == {"b": {"main/w", "main/m"}, "a": {"main/y"}}
    assert needs_of(made(chain), UNITS) == tuple(each for each in needs if each.form == LIVE)


def test_a_tied_weight_is_sent_once_to_the_holder_of_both_its_trainers() -> None:
    """Of two backups on b that share w, the first brings it; both together are what b needs."""
    units = UNITS | {"t": UnitItems(trained=("y", "w"))}
    chain = Lane(name="main", segments=(segment("u", "a"), segment("v", "b"), segment("t", "c")))
    kept = (Backup(lane="main", segment=0, holder="b"), Backup(lane="main", segment=2, holder="b"))
    plan = made(chain, backups=kept, backup_every_rounds=1)
    assert backups_of(plan, units) == (
        SentBackup(source="a", holder="b", items=frozenset({W, Item("main", "m")})),
        SentBackup(source="c", holder="b", items=frozenset({Y})),
    )
    assert by_device(needs_of(plan, units), BACKUP) == {"b": {"main/w", "main/m", "main/y"}}


def test_a_collector_holds_what_is_trained_for_all_lanes() -> None:
    """With a collector a lane's device holds only its buffers; the collector's state may be backed up elsewhere."""
    lanes = [Lane(name=name, segments=(segment("u", name),)) for name in ("a", "b")]
    backups = (Backup(lane="", segment=0, holder="a"),)
    needs = needs_of(made(*lanes, collector="c", backups=backups, backup_every_rounds=2), UNITS)
    assert by_device(needs, LIVE) == {"a": {"a/m"}, "b": {"b/m"}, "c": {"w"}}
    assert by_device(needs, BACKUP) == {"a": {"w"}}
