"""Shares of a link's bandwidth are kept by real messages, not only stated in plans."""

from dataclasses import replace
from pathlib import Path

from fleetune.contracts.plan import LinkUse
from tests.support.training.lanes import TRAINING, by_blocks, ready_for
from tests.support.training.runs import run_plan

RATE = 1e8
"""Bytes per second of the fleet's links."""


def test_a_device_with_a_share_of_a_link_sends_no_faster(tmp_path: Path) -> None:
    """d0 may use a thousandth of its link to the collector: its gradients take as long as that rate says, at least;
    those of d1, with half of the link, arrive in a fraction of it.
    """
    ready = ready_for(tmp_path)
    made = by_blocks(ready, [2])
    shares = {"d0": 1e-3, "d1": 0.5}
    made = replace(made, links=tuple(LinkUse(source=d, target="s", share=share) for d, share in shares.items()))
    metrics = run_plan(ready, made, replace(TRAINING, rounds=3), tmp_path)
    sent = {row.device: row for row in metrics.timeline if row.device in ("d0>s", "d1>s") and "U" in row.action}
    took_s = {device: row.end_s - row.start_s for device, row in sent.items()}
    least_s = {f"{d}>s": sent[f"{d}>s"].bytes / (share * RATE) for d, share in shares.items()}
    assert least_s["d0>s"] > 0.2, "enough bytes to see it"
    assert took_s["d0>s"] > 0.8 * least_s["d0>s"]
    assert took_s["d1>s"] < 0.5 * took_s["d0>s"]


def test_what_a_share_sends_after_the_report_counts_for_its_round(tmp_path: Path) -> None:
    """A device reports its round while its gradients wait for their turn; all their bytes are of that round."""
    ready = ready_for(tmp_path)
    made = by_blocks(ready, [2])
    made = replace(made, links=tuple(LinkUse(source=d, target="s", share=2e-3) for d in ("d0", "d1")))
    metrics = run_plan(ready, made, replace(TRAINING, rounds=4), tmp_path)
    rows = {row.device: row.bytes for row in metrics.timeline if ">s" in row.device and "U" in row.action}
    sent = {f"{link.source}>{link.target}": link.bytes for link in metrics.link_bytes}
    for link, size in rows.items():
        assert size <= sent[link] < 1.1 * size + 4096, (link, size, sent)
