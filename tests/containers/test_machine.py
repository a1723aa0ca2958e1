"""Kernel support for shaped links, detected from files."""

from pathlib import Path

import pytest

from containers import machine

RELEASE = "6.1"
BOTH = ("sch_htb", "cls_u32")


def _kernel(root: Path, option: str | None, modules: str | None) -> None:
    """A kernel built with all options as `option` says, and a list of modules that it can load."""
    if option is not None:
        (root / "boot").mkdir()
        lines = "".join(f"CONFIG_{name}{option}\n" for name in machine.REQUIRED_OPTIONS)
        (root / "boot" / f"config-{RELEASE}").write_text("CONFIG_NET=y\n" + lines)
    if modules is not None:
        folder = root / "lib" / "modules" / RELEASE
        folder.mkdir(parents=True)
        (folder / "modules.dep").write_text(modules)


@pytest.mark.parametrize(
    ("option", "modules", "lacking"),
    [
        ("=y", None, ()),
        ("=y", "kernel/other.ko:\n", ()),
        ("=m", "kernel/net/sched/sch_htb.ko.xz:\nkernel/net/sched/cls_u32.ko.xz:\n", ()),
        ("=m", "kernel/net/sched/sch_htb.ko.xz:\n", ("cls_u32",)),
        ("=m", None, None),
        (" is not set", None, BOTH),
        (None, "kernel/other.ko:\n", BOTH),
        (None, None, None),
    ],
)
def test_missing_modules(
    tmp_path: Path, option: str | None, modules: str | None, lacking: tuple[str, ...] | None
) -> None:
    """Built-in options and available modules count as present; None where modules cannot be seen."""
    _kernel(tmp_path, option, modules)
    assert machine.missing_modules(tmp_path, RELEASE) == lacking


def test_a_module_in_use_is_there(tmp_path: Path) -> None:
    """A loaded module counts as present without a module file."""
    for module in BOTH:
        (tmp_path / "sys" / "module" / module).mkdir(parents=True)
    assert machine.missing_modules(tmp_path, RELEASE) == ()


def test_describe(tmp_path: Path) -> None:
    """Delays need no kernel support, and unknown support counts as possible."""
    can, words = machine.describe_link_shaping(tmp_path)
    assert can and "cannot be seen" in words and "delays are added by the receiver" in words
