"""Names of classes in the features of Hugging Face data sets: those of a ClassLabel, or of a list of them."""

import json
from collections.abc import Mapping
from typing import Any

CLASS_LABEL = "ClassLabel"
LISTS = ("Sequence", "List", "LargeList")
"""Kinds of features that are lists, by the version of the `datasets` package that wrote them."""


def stored_names(noted: bytes, column: str) -> tuple[str, ...]:
    """Class names of a column by the features that the package stores as JSON; empty for other columns."""
    try:
        feature: Any = json.loads(noted)["info"]["features"][column]
        if isinstance(feature, Mapping) and feature["_type"] in LISTS:
            feature = feature["feature"]
        elif isinstance(feature, list):
            (feature,) = feature
        return tuple(feature["names"]) if feature["_type"] == CLASS_LABEL else ()
    except (ValueError, KeyError, TypeError):
        return ()


def loaded_names(feature: Any) -> tuple[str, ...]:
    """Class names of a feature as the package has loaded it; empty for other features."""
    if isinstance(feature, list) and len(feature) == 1:
        return loaded_names(feature[0])
    if type(feature).__name__ in LISTS:
        return loaded_names(feature.feature)
    return tuple(getattr(feature, "names", None) or ())
