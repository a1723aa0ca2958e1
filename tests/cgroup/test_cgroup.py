"""Limits of control groups."""

from pathlib import Path

import pytest

from fleetune.cgroup import CgroupLimits, cgroup_limits


def limits(root: Path, membership: str, files: dict[str, str]) -> CgroupLimits:
    """Draw a tree of groups and read it."""
    (root / "self").write_text(membership)
    for name, text in files.items():
        path = root / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cgroup_limits(root / "self", root / "mount")


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
    """Versions 1 and 2, limits of parents, paths as seen from outside a container, and none at all."""
    assert limits(tmp_path, membership, files) == CgroupLimits(cores=cores, memory_bytes=memory_bytes)


def test_a_machine_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    """Files that are not there are no error."""
    assert cgroup_limits(tmp_path / "none", tmp_path) == CgroupLimits(cores=None, memory_bytes=None)
