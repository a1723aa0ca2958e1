"""Whether this machine's kernel can shape the links between containers: htb holds rates, u32 finds destinations.

Only the kernel matters: what shapes runs in a container and speaks netlink itself. Delays are none of the kernel's
business either: whoever receives holds messages back (many kernels lack netem, which would do it).
"""

import gzip
import os
import re
from pathlib import Path

__all__ = ["NEEDED", "lacking", "words"]

NEEDED = {"NET_SCH_HTB": "sch_htb", "NET_CLS_U32": "cls_u32"}
"""Options of the kernel -> the modules that they make."""
DELAYS = "delays are added by whoever receives"


def words(root: Path = Path("/")) -> tuple[bool, str]:
    """Whether rates can be shaped, as far as is known, and what to say of it."""
    missing = lacking(root, os.uname().release)
    if missing is None:
        return True, f"whether this kernel can hold links to rates cannot be seen; {DELAYS}"
    if missing:
        return False, f"this kernel lacks {' and '.join(missing)}, so links cannot be held to rates; {DELAYS}"
    return True, f"this kernel can hold links to rates; {DELAYS}"


def lacking(root: Path, release: str) -> tuple[str, ...] | None:
    """Which modules the kernel `release` neither has built in nor can load, by the files under `root`; None: nothing
    tells."""
    found = {module: _has(root, release, option, module) for option, module in NEEDED.items()}
    missing = tuple(module for module, there in found.items() if there is False)
    return None if not missing and None in found.values() else missing


def _has(root: Path, release: str, option: str, module: str) -> bool | None:
    if (root / "sys/module" / module).exists():
        return True
    listed = root / "lib/modules" / release / "modules.dep"
    if listed.is_file() and f"/{module}.ko" in listed.read_text():
        return True
    configuration = _configuration(root, release)
    if configuration is None:
        return False if listed.is_file() else None
    chosen = re.search(rf"^CONFIG_{option}=([ym])$", configuration, re.M)
    if chosen is None or chosen[1] == "y":
        return chosen is not None
    return False if listed.is_file() else None  # in a container the modules of the machine are not to be seen


def _configuration(root: Path, release: str) -> str | None:
    """The options that the kernel was built with."""
    try:
        return gzip.decompress((root / "proc/config.gz").read_bytes()).decode()
    except OSError:
        plain = root / "boot" / f"config-{release}"
        return plain.read_text() if plain.is_file() else None
