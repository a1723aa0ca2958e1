"""Stores of one user alone."""

from pathlib import Path

from flows import api


def test_a_new_store_is_its_owners_and_one_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    """A store holds copies of data that others may not read; whoever shares one has given it its rights."""
    new, shared = tmp_path / "a" / "new", tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    for _ in range(2):
        api.check_writable(new)
        api.check_writable(shared)
    assert new.stat().st_mode & 0o777 == 0o700 and shared.stat().st_mode & 0o777 == 0o750
