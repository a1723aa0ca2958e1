"""Kills at any moment leave no partial artifact."""

import subprocess
import sys
from pathlib import Path

from fleetune.store import Store
from tests.store.kill_at_every_step import put_and_keep


def test_a_kill_at_any_file_operation_leaves_all_or_nothing(tmp_path: Path) -> None:
    """After a kill at each file operation in turn, known keys have complete artifacts and a repetition succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.kill_at_every_step", str(tmp_path)], capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    steps = sorted((int(path.name) for path in tmp_path.iterdir() if path.name != "warm"), reverse=True)
    assert len(steps) > 15
    known = []
    for step in steps:
        store = Store(tmp_path / str(step))
        for digest in store.storage.names("artifacts/plan"):
            store.verify("plan", digest)
        known.append(store.find("key") is not None)
        store.drop_work("key")
        put_and_keep(tmp_path / str(step))
        found = store.find("key")
        assert found is not None
        store.verify("plan", found["plan"])
    assert known[0] and not known[-1]
    assert known == sorted(known, reverse=True), "once the key is known it stays known"
