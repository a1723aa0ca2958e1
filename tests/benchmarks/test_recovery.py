"""The workload of the benchmark `recovery`: what its figures rest on."""

from dataclasses import replace
from pathlib import Path

from benchmarks.recovery.workload import BYTES_PER_S, CORES, PACED, paced, prepare_workload
from fleetune.planning.revision import heavy, light


def test_every_device_can_be_lost(tmp_path: Path) -> None:
    """All four devices train, what only one of them trains has a backup, and both kinds of plans follow each loss."""
    workload = prepare_workload(tmp_path / "work")
    plan = workload.plan().plan
    assert set(plan.devices) == set(CORES)
    alone = {k for k, segment in enumerate(plan.lanes[0].segments) if len(segment.devices) == 1}
    assert {backup.segment for backup in plan.backups} == alone and plan.backup_every_rounds > 0
    for device in CORES:
        for revise in (light, heavy):
            found = paced(revise(workload.problem, replace(plan, links=()), [device])).plan
            assert device not in found.devices
            assert {use.share for use in found.links} == {PACED} and len(found.links) == 12
    assert {link.bytes_per_s for link in workload.problem.fleet.links} == {BYTES_PER_S}
