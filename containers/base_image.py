"""Base image made from this machine's own Python, for machines that cannot pull one from a registry.

It holds the interpreter, its standard library, pip, and the shared libraries that these and binary wheels need: no
shell, no package manager. The same Python gives the same bytes: times, owners and file order are not kept.
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
EXCLUDED_FOLDERS = {
    "__pycache__",
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "idlelib",
    "tkinter",
    "turtledemo",
}
EXCLUDED_FILES = re.compile(r"\.a$|^_tkinter\.|^config-3")
WHEEL_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libm.so.6", "libdl.so.2", "librt.so.1")
GLIBC_LIBRARIES = ("libpthread.so.0", "libutil.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
TEXT_FILES = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nfleetune:x:10001:10001::/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\nfleetune:x:10001:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
EMPTY_FOLDERS = {"tmp": 0o1777, "proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755}


def name() -> str:
    """Name and tag of the image."""
    return "fleetune-base:python-{}.{}.{}".format(*sys.version_info[:3])


def write(output: IO[bytes]) -> None:
    """Write the whole file system as a tar archive."""
    standard = Path(sysconfig.get_path("stdlib"))
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = f"usr/local/lib/{version}"
    with tarfile.open(fileobj=output, mode="w|") as archive:
        for path, mode in EMPTY_FOLDERS.items():
            _add(archive, _entry(path, tarfile.DIRTYPE, mode))
        for path, text in TEXT_FILES.items():
            _add(archive, _entry(path, mode=0o644), text.encode())
        for top in _merged_folders():
            _add_link(archive, top, f"usr/{top}")
        _add(archive, _entry(f"usr/local/bin/{version}", mode=0o755), python.read_bytes())
        for alias in ("python3", "python"):
            _add_link(archive, f"usr/local/bin/{alias}", version)
        _add_tree(archive, standard, library)
        _add_tree(archive, _pip(), f"{library}/pip")  # found whatever the distribution names its package folder
        for file in _shared_libraries([python, *sorted(standard.glob("lib-dynload/*.so"))]):
            inside = f"usr/local/lib/{file.name}" if Path(sys.base_prefix) in file.parents else _linker_path(file)
            _add(archive, _entry(inside, mode=0o755), file.read_bytes())


def _pip() -> Path:
    found = find_spec("pip")
    if found is None or found.origin is None:
        raise Refused("this Python has no pip to put into an image: run make test first, then make images")
    return Path(found.origin).parent


def _merged_folders() -> Iterator[str]:
    """Top-level folders that are links into /usr on this machine."""
    return (top for top in ("bin", "lib", "lib64") if Path("/", top).is_symlink())


def _linker_path(file: Path) -> str:
    """Path where the dynamic linker looks for a library: its path here, with links of its folder resolved."""
    return str(file.parent.resolve() / file.name).lstrip("/")


def _shared_libraries(binaries: Iterable[Path]) -> list[Path]:
    """Shared libraries that the binaries and binary wheels need, and the dynamic linker itself."""
    found = set()
    for binary in binaries:
        if not EXCLUDED_FILES.search(binary.name):
            output = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
            found |= {Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(", output, re.M)}
    folder = next(path.parent for path in found if path.name.startswith("libc.so"))
    for parent in (folder, Path("/usr", *folder.parts[1:])):
        found |= {path for name in (*WHEEL_LIBRARIES, *GLIBC_LIBRARIES) if (path := parent / name).exists()}
    return sorted({_linker_path(path): path for path in sorted(found)}.values())


def _add_tree(archive: tarfile.TarFile, source: Path, target: str) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if (
            path.is_file()
            and not EXCLUDED_FOLDERS & set(inside.parts)
            and not any(map(EXCLUDED_FILES.search, inside.parts))
        ):
            _add(archive, _entry(f"{target}/{inside}", mode=0o644), path.read_bytes())


def _add_link(archive: tarfile.TarFile, path: str, target: str) -> None:
    entry = _entry(path, tarfile.SYMTYPE)
    entry.linkname = target
    _add(archive, entry)


def _entry(path: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o777) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry


def _add(archive: tarfile.TarFile, entry: tarfile.TarInfo, content: bytes = b"") -> None:
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
