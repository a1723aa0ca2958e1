"""The base image made from this machine's Python, as an archive."""

import tarfile
from pathlib import Path

import pytest

from containers import base_image


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[tarfile.TarInfo]:
    """Everything in the base image."""
    archive = tmp_path_factory.mktemp("base") / "base_image.tar"
    with archive.open("wb") as output:
        base_image.write(output)
    with tarfile.open(archive) as written:
        return written.getmembers()


def test_base_is_whole(entries: list[tarfile.TarInfo]) -> None:
    """The image holds the interpreter, its library, pip, and the C and C++ libraries once each, and no packages."""
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names))
    library = "usr/local/lib/python3.11"
    assert {"usr/local/bin/python3", f"{library}/os.py", f"{library}/pip/__main__.py", "tmp"} <= set(names)
    assert {"libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"} <= {Path(name).name for name in names}
    assert not [name for name in names if {"site-packages", "test", "__pycache__"} & set(Path(name).parts)]


def test_base_holds_no_traces_of_this_machine(entries: list[tarfile.TarInfo]) -> None:
    """The image holds no times or owners of this machine and no absolute links, and only /tmp is writable by anyone."""
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname) for entry in entries} == {(0, 0, 0, "")}
    assert not [entry.name for entry in entries if entry.issym() and entry.linkname.startswith("/")]
    assert [entry.name for entry in entries if entry.mode & 0o002 and not entry.issym()] == ["tmp"]
