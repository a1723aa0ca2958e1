"""Kernel support for shaped links between containers: htb holds rates, u32 filters find destinations.

Only the kernel matters, because the shaping program runs in a container and speaks netlink itself. Delays need no
kernel support: the receiver holds messages back (many kernels lack netem, which could delay them).
"""

import gzip
import os
import re
from pathlib import Path

__all__ = ["REQUIRED_OPTIONS", "describe", "missing_modules"]

REQUIRED_OPTIONS = {"NET_SCH_HTB": "sch_htb", "NET_CLS_U32": "cls_u32"}
"""Option of the kernel's configuration -> the module that it makes."""
DELAYS = "delays are added by whoever receives"


def describe(root: Path = Path("/")) -> tuple[bool, str]:
    """(False only where rates certainly cannot be shaped, a sentence for people)."""
    missing = missing_modules(root, os.uname().release)
    if missing is None:
        return True, f"whether this kernel can hold links to rates cannot be seen; {DELAYS}"
    if missing:
        return False, f"this kernel lacks {' and '.join(missing)}, so links cannot be held to rates; {DELAYS}"
    return True, f"this kernel can hold links to rates; {DELAYS}"


def missing_modules(root: Path, release: str) -> tuple[str, ...] | None:
    """Modules that the kernel `release` neither has built in nor can load, judged by files under `root`.

    None where no file tells.
    """
    found = {module: _has(root, release, option, module) for option, module in REQUIRED_OPTIONS.items()}
    missing = tuple(module for module, there in found.items() if there is False)
    return None if not missing and None in found.values() else missing


def _has(root: Path, release: str, option: str, module: str) -> bool | None:
    if (root / "sys/module" / module).exists():
        return True
    listed = root / "lib/modules" / release / "modules.dep"
    if listed.is_file() and f"/{module}.ko" in listed.read_text():
        return True
    configuration = _kernel_config(root, release)
    if configuration is None:
        return False if listed.is_file() else None
    chosen = re.search(rf"^CONFIG_{option}=([ym])$", configuration, re.M)
    if chosen is None or chosen[1] == "y":
        return chosen is not None
    return False if listed.is_file() else None  # inside a container the modules of the machine are not visible


def _kernel_config(root: Path, release: str) -> str | None:
    """The options that the kernel was built with; None where they cannot be read."""
    try:
        return gzip.decompress((root / "proc/config.gz").read_bytes()).decode()
    except OSError:
        plain = root / "boot" / f"config-{release}"
        return plain.read_text() if plain.is_file() else None
