"""Limits of control groups, and the memory that these leave."""

from pathlib import Path

import pytest

from fleetune.linux import CgroupLimits, cgroup_limits, free_bytes


def limits(root: Path, membership: str, files: dict[str, str]) -> CgroupLimits:
    """Write a tree of groups and read its limits."""
    write_tree(root, membership, files)
    return cgroup_limits(root / "self", root / "mount")


def write_tree(root: Path, membership: str, files: dict[str, str]) -> None:
    """Write a membership file and the files of groups."""
    (root / "self").write_text(membership)
    for name, text in files.items():
        path = root / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "cores", "memory_bytes"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "5000\n", "memory.max": "9000\n"}, None, 5000),
        ("0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "max\n"}, 1.5, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None, None),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "7000\n"}, None, 7000),
        ("4:memory:/seen/from/outside\n", {"memory/memory.limit_in_bytes": "7000\n"}, None, 7000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None, None),
        ("1:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "5000\n", "cpu/x/cpu.cfs_period_us": "10000\n"}, 0.5, None),
        ("1:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "10000\n"}, None, None),
        ("", {}, None, None),
    ],
)
def test_the_tightest_limit_on_the_way_up_counts(
    tmp_path: Path, membership: str, files: dict[str, str], cores: float | None, memory_bytes: int | None
) -> None:
    """Limits of versions 1 and 2 and of parent groups count, also by paths as seen from outside a container."""
    assert limits(tmp_path, membership, files) == CgroupLimits(cores=cores, memory_bytes=memory_bytes)


def test_a_machine_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    """Missing files are no error."""
    assert cgroup_limits(tmp_path / "none", tmp_path) == CgroupLimits(cores=None, memory_bytes=None)


def test_free_memory_is_what_the_tightest_group_leaves(tmp_path: Path) -> None:
    """A parent with less left than the process's own group counts; groups without a limit do not."""
    files = {"a/b/memory.max": "9000\n", "a/b/memory.current": "100\n", "a/memory.max": "5000\n"}
    more = {"a/memory.current": "4000\n", "memory.max": "max\n", "memory.current": "1\n"}
    write_tree(tmp_path, "0::/a/b\n", {**files, **more})
    assert free_bytes(tmp_path / "self", tmp_path / "mount") == 1000
    assert free_bytes(tmp_path / "none", tmp_path / "mount") is None
