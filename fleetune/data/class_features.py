"""Names of classes: in one Unicode form, and in the features of Hugging Face data sets, of a ClassLabel or a list."""

import json
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

CLASS_LABEL = "ClassLabel"
LISTS = ("Sequence", "List", "LargeList")
"""Kinds of features that are lists, by the version of the `datasets` package that wrote them."""


INVISIBLE = re.compile("[\ufe00-\ufe0f\u034f]")
"""Selectors of variants and joiners, which are marks; those of the categories Cc and Cf are invisible, too."""
OTHER_LOOKS = frozenset({"<super>", "<sub>", "<font>", "<circle>", "<square>", "<fraction>"})
"""Forms of a character that nobody takes for it, as Unicode calls them: a doubled R is no R."""
SPELLED_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def composed(name: str) -> str:
    """A name with composed characters (NFC): macOS decomposes them, others do not."""
    return unicodedata.normalize("NFC", name)


def visible(name: str) -> str:
    """What is seen of a name: without invisible characters, in one width, and with single spaces of one kind."""
    seen = (" " if each.isspace() else _plain(each) for each in composed(name))
    kept = (each for each in seen if unicodedata.category(each[0]) not in ("Cc", "Cf") and not INVISIBLE.match(each))
    return " ".join("".join(kept).split())


def _plain(character: str) -> str:
    """A character, or those that it is a form of (NFKC), such as a wide one; not those that it shows in another way."""
    form = unicodedata.decomposition(character).partition(" ")[0]
    return character if form in OTHER_LOOKS else unicodedata.normalize("NFKC", character)


def meant(name: str) -> Decimal | str:
    """The number that a name spells in any way (01, +1, 1E0), else what is seen of it."""
    seen = visible(name)
    try:
        return Decimal(seen) if SPELLED_NUMBER.fullmatch(seen) else seen
    except InvalidOperation:  # an exponent beyond all that Decimal holds
        return seen


def stored_names(noted: bytes, column: str) -> tuple[str, ...]:
    """Class names of a column by the features that the package stores as JSON; empty for other columns."""
    try:
        feature: Any = json.loads(noted)["info"]["features"][column]
        if isinstance(feature, Mapping) and feature["_type"] in LISTS:
            feature = feature["feature"]
        elif isinstance(feature, list):
            (feature,) = feature
        return tuple(map(composed, feature["names"])) if feature["_type"] == CLASS_LABEL else ()
    except (ValueError, KeyError, TypeError):
        return ()


def loaded_names(feature: Any) -> tuple[str, ...]:
    """Class names of a feature as the package has loaded it; empty for other features."""
    if isinstance(feature, list) and len(feature) == 1:
        return loaded_names(feature[0])
    if type(feature).__name__ in LISTS:
        return loaded_names(feature.feature)
    return tuple(map(composed, getattr(feature, "names", None) or ()))
