"""Folders packed into and unpacked from tar streams."""

import io
import os
import socket
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from fleetune.errors import Refused, TryAgain
from fleetune.launching.docker import tar_archive
from fleetune.launching.docker.tar_archive import END, IMAGE_USER, list_entries, pack, unpack
from tests.support.filesystem.synced import recorded

PIECE = 1000


def packed(folder: Path, under: str = "x") -> bytes:
    """The whole tar stream of a folder."""
    return b"".join([*pack(list_entries(folder), under), END])


def stream(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar stream as a container might send it."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return output.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, leads_to: str = "") -> tarfile.TarInfo:
    """The header of a member."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, leads_to
    return made


def in_pieces(whole: bytes) -> list[bytes]:
    """A stream cut into pieces, as it comes over a socket."""
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Relative path -> content, or None for folders, of everything in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_packing_and_unpacking_round_trip(tmp_path: Path) -> None:
    """Files, empty files and folders, and long and non-UTF-8 names survive packing and unpacking."""
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "a" / "b" / "big").write_bytes(os.urandom(3 * PIECE + 1))
    (source / "a" / "none").touch()
    (source / ("n" * 200)).write_text("long")
    Path(os.fsdecode(os.fsencode(source) + b"/\xff\xc3\xbc")).write_text("bytes")
    unpack(in_pieces(packed(source)), tmp_path / "target")
    assert tree(tmp_path / "target") == tree(source)


def test_owners_and_modes_are_normalised(tmp_path: Path) -> None:
    """Packed members have modes 0644 and 0755 and the images' user, whatever they have here."""
    (tmp_path / "s" / "d").mkdir(parents=True)
    (tmp_path / "s" / "d" / "f").write_text("f")
    first = packed(tmp_path / "s")
    (tmp_path / "s" / "d" / "f").chmod(0o600)
    (tmp_path / "s" / "d").chmod(0o700)
    assert packed(tmp_path / "s") == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        modes = {each.name: (each.mode, each.uid, each.gid) for each in archive}
    assert modes == {
        "x": (0o755, IMAGE_USER, IMAGE_USER),
        "x/d": (0o755, IMAGE_USER, IMAGE_USER),
        "x/d/f": (0o644, IMAGE_USER, IMAGE_USER),
    }


def test_links_are_followed(tmp_path: Path) -> None:
    """A link to a file or folder becomes a copy of its target, also in the hub's cache."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    (tmp_path / "models--a--b" / "blobs").mkdir(parents=True)
    (tmp_path / "models--a--b" / "blobs" / "x").write_text("f")
    snapshot.mkdir(parents=True)
    (snapshot / "inside").mkdir()
    (snapshot / "inside" / "f").symlink_to("../../../blobs/x")
    (snapshot / "folder").symlink_to("inside")
    (snapshot / "file").symlink_to("folder/f")
    unpack([packed(snapshot)], tmp_path / "t")
    assert tree(tmp_path / "t") == {"inside": None, "inside/f": b"f", "folder": None, "folder/f": b"f", "file": b"f"}
    assert not any(path.is_symlink() for path in (tmp_path / "t").rglob("*"))


def a_socket(folder: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(folder / "it"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (a_socket, "neither a file nor a folder"),
        (lambda folder: os.mkfifo(folder / "it"), "neither a file nor a folder"),
        (lambda folder: (folder / "it").symlink_to("nowhere"), "No such file"),
        (lambda folder: (folder / "it").symlink_to(folder), "leads back"),
        (lambda folder: (folder / "it").symlink_to("/etc/passwd"), "leads out of"),
    ],
)
def test_special_files_and_bad_links_are_refused(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    """Sockets, pipes, dangling, looping and outward links are refused by name."""
    make(tmp_path)
    with pytest.raises(Refused, match=f"{tmp_path}/it cannot be copied.*{why}"):
        list_entries(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    """A path that is no folder is refused."""
    (tmp_path / "f").touch()
    for path in (tmp_path / "f", tmp_path / "none"):
        with pytest.raises(Refused, match=f"{path} cannot be copied.*it is not a folder"):
            list_entries(path)


def test_files_that_change(tmp_path: Path) -> None:
    """A file that grows is packed at its former size; one that shrinks or vanishes raises TryAgain with its name."""
    file = tmp_path / "f"
    content = 3 << 20
    for size, then in ((content + 5, None), (content - 5, "became shorter")):
        file.write_bytes(bytes(content))
        pieces = pack(list_entries(tmp_path), "x")
        taken = [next(pieces) for _ in range(3)]  # two heads and the first piece
        os.truncate(file, size)
        if then is None:
            with tarfile.open(fileobj=io.BytesIO(b"".join([*taken, *pieces, END]))) as archive:
                assert archive.getmember("x/f").size == content
        else:
            with pytest.raises(TryAgain, match=f"{file} {then}"):
                list(pieces)
    found = list_entries(tmp_path)
    file.unlink()
    with pytest.raises(TryAgain, match=rf"{file} could not be read.*\(No such file"):
        list(pack(found, "x"))


def test_large_files_are_never_held_in_memory(tmp_path: Path) -> None:
    """Neither packing nor unpacking holds a whole file in memory."""
    size = 64 << 20
    (tmp_path / "s").mkdir()
    with (tmp_path / "s" / "f").open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    try:
        unpack(chain(pack(list_entries(tmp_path / "s"), "x"), [END]), tmp_path / "t")
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()
    assert (tmp_path / "t" / "f").stat().st_size == size


@pytest.mark.parametrize(
    "bad",
    [
        member("x/../../out"),
        member("/out"),
        member("x/out", tarfile.SYMTYPE, "/etc/passwd"),
        member("x/out", tarfile.SYMTYPE, "a/../../b"),
        member("x/out", tarfile.LNKTYPE, "../b"),
        member("x/out", tarfile.LNKTYPE, "/etc/passwd"),
        member("x/out", tarfile.CHRTYPE),
        member("x/out", tarfile.FIFOTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.type.decode()} {bad.linkname}",
)
def test_members_outside_the_folder_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """Names and links that lead out, and devices, are refused; members before them stay."""
    target = tmp_path / "deep" / "t"
    with pytest.raises(Refused, match=f"{target}: its container holds .*it was not copied"):
        unpack([stream((member("x/good"), b"good"), (bad, b""))], target)
    assert tree(tmp_path) == {"deep": None, "deep/t": None, "deep/t/good": b"good"}
    assert not (target / "out").is_symlink()


def extended(fields: bytes, kind: bytes = tarfile.XHDTYPE, size: int | None = None) -> bytes:
    """An extended header with these bytes, and perhaps a false size."""
    head = tarfile.TarInfo("extended")
    head.type, head.size = kind, len(fields) if size is None else size
    return head.tobuf(tarfile.GNU_FORMAT) + fields + bytes(-len(fields) % tarfile.BLOCKSIZE)


def pax(key: bytes, value: bytes) -> bytes:
    """One field of an extended header."""
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 > length:
        length += 1
    return b"%d %b=%b\n" % (length, key, value)


@pytest.mark.parametrize(
    ("before", "name", "kind", "says"),
    [
        (extended(pax(b"path", b"x/a\0b")), "x/f", tarfile.REGTYPE, "with an invalid name"),
        (extended(b"x/a\0b\0", b"L"), "x/f", tarfile.REGTYPE, "with an invalid name"),
        (extended(pax(b"path", b"x/" + b"n" * 300)), "x/f", tarfile.REGTYPE, "with an invalid name"),
        (extended(pax(b"path", b"x/" * 3000)), "x/f", tarfile.REGTYPE, "with an invalid name"),
        (extended(pax(b"path", b"x/../../out")), "x/f", tarfile.REGTYPE, "may lead outside"),
        (extended(pax(b"path", b"/out")), "x/f", tarfile.REGTYPE, "may lead outside"),
        (extended(pax(b"GNU.sparse.realsize", b"999999999999")), "x/f", tarfile.REGTYPE, "a sparse file"),
        (extended(pax(b"size", b"999999999999999999")), "x/f", tarfile.REGTYPE, "999999999999999999 bytes"),
        (extended(b"", size=583 << 20), "x/f", tarfile.REGTYPE, "a header of 611319808 bytes"),
        (extended(b"", b"L", size=583 << 20), "x/f", tarfile.REGTYPE, "a header of 611319808 bytes"),
        (b"", "x/f", tarfile.GNUTYPE_SPARSE, "no file or folder"),
        (b"", "x/f", tarfile.SYMTYPE, "no file or folder"),
        (b"", "x/f", tarfile.LNKTYPE, "no file or folder"),
        (extended(pax(b"path", b"x"), tarfile.XGLTYPE), "x/f", tarfile.REGTYPE, "no file or folder"),
    ],
)
def test_implausible_members_are_refused(tmp_path: Path, before: bytes, name: str, kind: bytes, says: str) -> None:
    """Members that are too large, or neither plain file nor folder, are refused by their header, before they are read.

    Bug: a hostile engine could fill memory by a header of 583 MiB, and the disk by the holes of a sparse file.
    """
    with pytest.raises(Refused, match=f"{says}.*it was not copied"):
        unpack([before, stream((member(name, kind, "f"), b""))], tmp_path)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("fields", [b"5 a=b\n" * 2 + b"x", b"99 path=f\n", b"0 path=f\n", b"path=f\n", b"\0" * 9])
def test_headers_that_cannot_be_read(tmp_path: Path, fields: bytes) -> None:
    """A header with malformed fields is reported as damage, and causes no endless loop."""
    with pytest.raises(TryAgain, match="was cut off or damaged"):
        unpack([extended(fields), stream((member("x/f"), b"f"))], tmp_path)
    assert tree(tmp_path) == {}


def test_many_fields_and_files_take_linear_time(tmp_path: Path) -> None:
    """A header with many fields followed by many small files is read in one pass."""
    fields = pax(b"SCHILY.xattr.user.a", b"b") * 1500 + pax(b"path", b"x/long")
    files = [(member(f"x/{number}"), b"f") for number in range(500)]
    unpack([extended(fields) + stream((member("x/f"), b"g"), *files)], tmp_path)
    assert tree(tmp_path) == {"long": b"g", **{str(number): b"f" for number in range(500)}}


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of members is bounded, because empty files cost no bytes."""
    monkeypatch.setattr(tar_archive, "MAX_MEMBERS", 5)
    with pytest.raises(Refused, match="more than 5 files"):
        unpack([stream(*((member(f"x/{number}"), b"") for number in range(20)))], tmp_path)


def test_no_link_here_is_followed(tmp_path: Path) -> None:
    """A link in the target folder cannot redirect files of a container."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").symlink_to(tmp_path)
    with pytest.raises(TryAgain, match=rf"{tmp_path}/t/a/f could not be written \(Not a directory\)"):
        unpack([stream((member("x/a/f"), b"f"))], tmp_path / "t")
    assert not (tmp_path / "f").exists()


def test_existing_files_are_replaced(tmp_path: Path) -> None:
    """A file is replaced, not rewritten in place, and files that the stream lacks stay."""
    (tmp_path / "f").write_text("old")
    (tmp_path / "mine").write_text("mine")
    with (tmp_path / "f").open() as before:
        unpack([stream((member("x/f"), b"new"))], tmp_path)
        assert before.read() == "old"
    assert tree(tmp_path) == {"f": b"new", "mine": b"mine"}


def test_cut_anywhere(tmp_path: Path) -> None:
    """A stream cut anywhere raises TryAgain and leaves no partial file."""
    whole = stream((member("x/f"), b"f" * 600), (member("x/g"), b"g"))[:4096]
    whole = whole[: whole.rindex(b"g") + 511] + END
    for length in range(0, len(whole) - tarfile.BLOCKSIZE + 1, 256):
        target = tmp_path / str(length)
        with pytest.raises(TryAgain, match="was cut off or damaged"):
            unpack([whole[:length]], target)
        assert tree(target).items() <= {"f": b"f" * 600, "g": b"g"}.items()


def test_a_full_disk(tmp_path: Path) -> None:
    """An error names the path that cannot be written."""
    (tmp_path / "f").mkdir()
    with pytest.raises(TryAgain, match=rf"{tmp_path}/f could not be written \(Is a directory\)"):
        unpack([stream((member("x/f"), b"f"))], tmp_path)
    assert tree(tmp_path) == {"f": None}


def test_what_is_unpacked_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that has its name is whole after a power cut: it is flushed before, and its folder after that."""
    done = recorded(monkeypatch)
    unpack([stream((member("x/a/f"), b"f"))], tmp_path)
    (part, *after) = done
    assert Path(part).parent == tmp_path / "a"
    assert after == [f"=> {tmp_path / 'a' / 'f'}", str(tmp_path / "a")]


def test_a_folder_that_is_swapped_while_a_file_is_written_leads_nowhere(tmp_path: Path) -> None:
    """Another container of this machine may swap the folder for a link at any moment: what was begun stays in it."""
    target, elsewhere = tmp_path / "t", tmp_path / "elsewhere"
    (target / "a").mkdir(parents=True)
    elsewhere.mkdir()
    whole = stream((member("x/a/f"), b"f" * 600))

    def pieces() -> Iterator[bytes]:
        yield whole[: tarfile.BLOCKSIZE + 100]
        (target / "a").rename(target / "b")
        (target / "a").symlink_to(elsewhere)
        yield whole[tarfile.BLOCKSIZE + 100 :]

    unpack(pieces(), target)
    assert list(elsewhere.iterdir()) == [] and (target / "b" / "f").read_bytes() == b"f" * 600
