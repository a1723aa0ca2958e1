"""How long work tells how far it is, without knowing who listens (a terminal, a JSON stream, nobody)."""

from typing import Protocol


class Progress(Protocol):
    """Called now and then by anything that may take longer than 2 s."""

    def __call__(self, what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """`what` is a few words ("training"); done and total count `unit` ("samples"); `detail` changes as it goes on
        ("loss 2.13")."""


def quiet(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
    """A Progress that nobody watches."""
