"""Whether links between containers can be shaped on this machine: `tc` for rates, the kernel's netem for delays."""

import gzip
import os
import re
import shutil
from pathlib import Path

__all__ = ["netem", "words"]

OPTION = re.compile(r"^CONFIG_NET_SCH_NETEM=([ym])$", re.M)


def words() -> str:
    """In a few words, for people."""
    if not shutil.which("tc") and not Path("/sbin/tc").exists():
        return "no tc, so links cannot be shaped (Debian's iproute2 has it)"
    known = netem(Path("/"), os.uname().release)
    if known is None:
        return "tc is there; whether this kernel has netem for delays cannot be seen"
    return "tc is there, " + ("with netem for delays" if known else "without netem: rates can be shaped, not delays")


def netem(root: Path, release: str) -> bool | None:
    """Whether the kernel `release` has netem, by its configuration and modules under `root`; None: nothing tells."""
    modules = root / "lib/modules" / release / "modules.dep"
    loadable = modules.is_file() and "/sch_netem.ko" in modules.read_text()
    configuration = _configuration(root, release)
    if configuration is None:
        return loadable if modules.is_file() else None
    option = OPTION.search(configuration)
    return option is not None and (option[1] == "y" or loadable)


def _configuration(root: Path, release: str) -> str | None:
    """The options that the kernel was built with."""
    try:
        return gzip.decompress((root / "proc/config.gz").read_bytes()).decode()
    except OSError:
        plain = root / "boot" / f"config-{release}"
        return plain.read_text() if plain.is_file() else None
