"""Memory control groups of child processes, on folders like the kernel's, and on its own where they can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetune.launching import memory_cgroup

LIMIT_BYTES = 64 << 20
ALL_AT_ONCE = f"held = bytearray({4 * LIMIT_BYTES}); held[::4096] = b'1' * len(held[::4096]); print(len(held))"


def v1(folder: Path, group: str = "/shop/desk") -> tuple[Path, Path, Path]:
    """Membership file, mount, and the process's own group, as version 1 lays them out."""
    (folder / "membership").write_text(f"9:name=systemd:/\n4:memory:{group}\n1:cpu:/\n0::/\n")
    own = folder / "mount" / "memory" / group.lstrip("/")
    own.mkdir(parents=True)
    return folder / "membership", folder / "mount", own


def v2(folder: Path, enabled: str) -> tuple[Path, Path, Path]:
    """The same for version 2, with these controllers enabled for children."""
    (folder / "membership").write_text("0::/shop/desk\n")
    own = folder / "mount" / "shop" / "desk"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text(enabled)
    return folder / "membership", folder / "mount", own


def test_a_group_of_version_1_holds_the_process(tmp_path: Path) -> None:
    """The limit is written before the process is put in."""
    membership, mount, own = v1(tmp_path)
    group = memory_cgroup.bind(77, LIMIT_BYTES, membership, mount)
    assert group is not None
    made = own / f"fleetune-{os.getpid()}-77"
    assert (made / "memory.limit_in_bytes").read_text() == str(LIMIT_BYTES)
    assert (made / "cgroup.procs").read_text() == "77"
    assert not group.oom_killed and group.peak_bytes == 0
    (made / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (made / "memory.max_usage_in_bytes").write_text(f"{LIMIT_BYTES}\n")
    assert group.oom_killed and group.peak_bytes == LIMIT_BYTES


def test_a_group_of_version_2_needs_the_controller_for_its_children(tmp_path: Path) -> None:
    """Where memory is not enabled for children, a limit would bind nothing: there the process is only watched."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    membership, mount, own = v2(tmp_path / "a", "cpu memory\n")
    assert memory_cgroup.bind(77, LIMIT_BYTES, membership, mount) is not None
    assert (own / f"fleetune-{os.getpid()}-77" / "memory.max").read_text() == str(LIMIT_BYTES)
    membership, mount, own = v2(tmp_path / "b", "cpu\n")
    assert memory_cgroup.bind(77, LIMIT_BYTES, membership, mount) is None
    assert [path.name for path in own.iterdir()] == ["cgroup.subtree_control"]


def test_without_groups_nothing_is_made(tmp_path: Path) -> None:
    """A machine without control groups, or one whose mount is not there."""
    assert memory_cgroup.bind(77, LIMIT_BYTES, tmp_path / "none", tmp_path) is None
    membership, mount, own = v1(tmp_path)
    own.rmdir()
    assert memory_cgroup.bind(77, LIMIT_BYTES, membership, mount) is None


def test_groups_of_makers_that_are_gone_are_swept(tmp_path: Path) -> None:
    """A killed maker leaves an empty group; that of a living one stays."""
    membership, mount, own = v1(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, living = own / f"fleetune-{ended.pid}-5", own / f"fleetune-{os.getpid()}-5"
    left.mkdir()
    living.mkdir()
    memory_cgroup.bind(77, LIMIT_BYTES, membership, mount)
    assert not left.exists() and living.exists()


def test_the_kernel_ends_what_takes_too_much_at_once() -> None:
    """Between two looks of a watchdog a process could take a gigabyte. In a group the kernel says no at the first page
    too many; where none can be made `bind` says so, and the watchdog is all there is."""
    script = ["-c", f"import sys; sys.stdin.readline(); {ALL_AT_ONCE}"]
    child = subprocess.Popen([sys.executable, *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    group = memory_cgroup.bind(child.pid, LIMIT_BYTES)
    told, _ = child.communicate(b"\n", timeout=60)
    if group is None:
        assert child.returncode == 0 and int(told) == 4 * LIMIT_BYTES
        return
    assert child.returncode == -9 and group.oom_killed
    assert group.peak_bytes == pytest.approx(LIMIT_BYTES, rel=0.1)
    assert group.remove()
