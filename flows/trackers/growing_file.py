"""A file of lines that another process appends to, or replaces."""

import os
from pathlib import Path


class GrowingFile:
    """The lines of a file that were not read yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._which: tuple[int, int] | None = None
        self._offset = 0

    def read(self) -> tuple[bool, list[bytes]]:
        """Return whether it is another file than at the last call, so that its lines replace those of then, and the
        whole lines that are new. A file that does not exist has none.
        """
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                other = (found.st_dev, found.st_ino) != self._which or found.st_size < self._offset
                if other:
                    self._which, self._offset = (found.st_dev, found.st_ino), 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return False, []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return other, whole.splitlines()
