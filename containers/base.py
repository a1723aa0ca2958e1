"""A base image made from this machine's own Python, for where no registry can be asked for one.

Nothing but the interpreter, its standard library, pip, and the shared libraries that these and binary wheels need: no
shell, no package manager. The same Python gives the same bytes: no times, owners or order of this machine are kept.
"""

import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from fleetune.errors import Refused

__all__ = ["SETTINGS", "name", "write"]

SETTINGS = ("ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV LD_LIBRARY_PATH=/usr/local/lib")
LEFT_OUT = {"__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "turtledemo"}
UNUSED = re.compile(r"\.a$|^_tkinter\.|^config-3")
WHEELS_NEED = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libm.so.6", "libdl.so.2", "librt.so.1")
THREADS_AND_NAMES = ("libpthread.so.0", "libutil.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nfleetune:x:10001:10001::/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\nfleetune:x:10001:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
EMPTY = {"tmp": 0o1777, "proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755}


def name() -> str:
    """What the image is called."""
    return "fleetune-base:python-{}.{}.{}".format(*sys.version_info[:3])


def write(output: IO[bytes]) -> None:
    """The whole file system, as a tar archive."""
    standard = Path(sysconfig.get_path("stdlib"))
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = f"usr/local/lib/{version}"
    with tarfile.open(fileobj=output, mode="w|") as archive:
        for place, mode in EMPTY.items():
            _add(archive, _entry(place, tarfile.DIRTYPE, mode))
        for place, text in TEXTS.items():
            _add(archive, _entry(place, mode=0o644), text.encode())
        for top in _merged():
            _link(archive, top, f"usr/{top}")
        _add(archive, _entry(f"usr/local/bin/{version}", mode=0o755), python.read_bytes())
        for alias in ("python3", "python"):
            _link(archive, f"usr/local/bin/{alias}", version)
        _tree(archive, standard, library)
        _tree(archive, _pip(), f"{library}/pip")  # on the path whatever a distribution calls its folder of packages
        for file in _libraries([python, *sorted(standard.glob("lib-dynload/*.so"))]):
            inside = f"usr/local/lib/{file.name}" if Path(sys.base_prefix) in file.parents else _place(file)
            _add(archive, _entry(inside, mode=0o755), file.read_bytes())


def _pip() -> Path:
    found = find_spec("pip")
    if found is None or found.origin is None:
        raise Refused("this Python has no pip to put into an image: run make test first, then make images")
    return Path(found.origin).parent


def _merged() -> Iterator[str]:
    """Top folders that are links into /usr here."""
    return (top for top in ("bin", "lib", "lib64") if Path("/", top).is_symlink())


def _place(file: Path) -> str:
    """Where the dynamic linker looks for a library: where it is here, with its folder's links followed."""
    return str(file.parent.resolve() / file.name).lstrip("/")


def _libraries(binaries: Iterable[Path]) -> list[Path]:
    """Shared libraries of the binaries and of binary wheels, and the dynamic linker itself."""
    found = set()
    for binary in binaries:
        if not UNUSED.search(binary.name):
            said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
            found |= {Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(", said, re.M)}
    folder = next(path.parent for path in found if path.name.startswith("libc.so"))
    for parent in (folder, Path("/usr", *folder.parts[1:])):
        found |= {path for name in (*WHEELS_NEED, *THREADS_AND_NAMES) if (path := parent / name).exists()}
    return sorted({_place(path): path for path in sorted(found)}.values())


def _tree(archive: tarfile.TarFile, source: Path, target: str) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and not LEFT_OUT & set(inside.parts) and not any(map(UNUSED.search, inside.parts)):
            _add(archive, _entry(f"{target}/{inside}", mode=0o644), path.read_bytes())


def _link(archive: tarfile.TarFile, place: str, target: str) -> None:
    entry = _entry(place, tarfile.SYMTYPE)
    entry.linkname = target
    _add(archive, entry)


def _entry(place: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o777) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(place)
    entry.type, entry.mode = kind, mode
    return entry


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, content: bytes = b"") -> None:
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
