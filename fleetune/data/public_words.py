"""Errors of a device's own data, with what may leave the device and what may come out of a sample told apart.

What a message quotes may come out of a sample: a cell, a heading that is a row, the name of a file. So of an error
only these words leave the device: those of its statement, what the statement fills in by name, and the numbers of rows.
Of an error that does not tell its parts apart, only the type is told.
"""

from typing import Any

from fleetune.errors import FleetuneError, Refused, TryAgain

WITHHELD = "..."
EXPLANATION = f" ({WITHHELD} stands for what may come out of its data; look at them on the device)"


class Place(str):
    """Where a row is, such as `own.csv: row 7`, of which the part within the file may leave the device."""

    public: str

    def __new__(cls, whole: str, public: str) -> "Place":
        """public: the part that may be told."""
        made = super().__new__(cls, whole)
        made.public = public
        return made


def inside(location: str, part: str) -> str:
    """A place within another; `part` may be told."""
    whole = f"{location}, {part}"
    return Place(whole, f"{location.public}, {part}") if isinstance(location, Place) else whole


def noted(location: str, name: str) -> str:
    """A place with a name that may not be told."""
    whole = f"{location} ({name})"
    return Place(whole, location.public) if isinstance(location, Place) else whole


class _Withheld:
    """Stands for a private value in any format."""

    def __format__(self, _: str) -> str:
        return WITHHELD

    def __repr__(self) -> str:
        return WITHHELD

    __str__ = __repr__


class _Parted(FleetuneError):
    """An error whose message is `words` with its parts filled in."""

    def __init__(self, words: str, *private: object, **public: object) -> None:
        """private: values that may come out of data, for the fields without a name; public: the others, by name. Of a
        `location` that is no Place nothing is told."""
        super().__init__(words.format(*private, **public))
        self.words, self.private, self.named = words, private, public

    @property
    def public(self) -> str:
        """The message without its private parts."""
        named = {name: _told_of(name, value) for name, value in self.named.items()}
        return self.words.format(*(_Withheld() for _ in self.private), **named).removeprefix(f"{WITHHELD}: ")

    def __reduce__(self) -> Any:
        """Pickled whole: in another process of this machine it is an error like any other."""
        return next(kind for kind in type(self).__mro__ if not issubclass(kind, _Parted)), (str(self),)


class Told(_Parted, Refused):
    """A refusal that knows which of its parts may leave the device."""


class ToldAgain(_Parted, TryAgain):
    """A TryAgain that knows which of its parts may leave the device."""


def public_words(error: BaseException) -> str:
    """Return the message of an error without anything that may come out of data."""
    if not isinstance(error, _Parted):
        return f"its data cannot be used: {type(error).__name__}{EXPLANATION}"
    return error.public + EXPLANATION if WITHHELD in error.public else error.public


def _told_of(name: str, value: object) -> object:
    if isinstance(value, Place | _Parted):
        return value.public
    return _Withheld() if name == "location" or isinstance(value, BaseException) else value
