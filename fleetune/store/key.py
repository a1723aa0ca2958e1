"""Stage keys: a hash over everything that could change what a stage makes, kept by name so that changes can be told.

Names of ingredients, all with text values:
    stage, stage version             which stage
    package.NAME                     version of a package it computes with
    code.PATH                        digest of a source file it runs
    config.DOTTED.NAME               one leaf of the slice of config it reads, as JSON
    seed
    content.NAME                     digest of something outside the store (data, model weights)
    input.KIND                       digest of an artifact it reads
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CODE = "code."
Ingredients = dict[str, str]


def stage_key(ingredients: Mapping[str, str]) -> str:
    """32 hex digits; the order of the ingredients does not matter."""
    plain = json.dumps(dict(ingredients), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode()).hexdigest()[:32]


def leaves(plain: Any, name: str) -> Ingredients:
    """A nested config as `name.a.b` -> JSON text; empty mappings and lists count as leaves."""
    if isinstance(plain, Mapping) and plain:
        return {key: text for part, value in plain.items() for key, text in leaves(value, f"{name}.{part}").items()}
    return {name: json.dumps(plain, sort_keys=True, ensure_ascii=False)}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What differs, in words: `training.learning_rate and data changed`; empty when nothing does.

    Inputs are named only when nothing else differs: they follow from what earlier stages tell of themselves.
    """
    names = [name for name in dict.fromkeys((*new, *old)) if old.get(name) != new.get(name)]
    code = sorted(name.removeprefix(CODE) for name in names if name.startswith(CODE))
    rest = [name for name in names if not name.startswith(CODE)]
    own = [name for name in rest if not name.startswith("input.")]
    said = list(dict.fromkeys(in_words(name) for name in (own if own or code else rest)))
    if code:
        said.append(f"code of {new.get('stage', 'the stage')}")
    if not said:
        return ""
    if len(said) > 3:
        said = [*said[:2], f"{len(said) - 3} more", said[-1]] if code else [*said[:3], f"{len(said) - 3} more"]
    told = " and ".join([", ".join(said[:-1]), said[-1]] if said[1:] else said) + " changed"
    return f"{told} ({_which(code, old)})" if code else told


def _which(code: list[str], old: Mapping[str, str]) -> str:
    """The first file that changed; an older version of this project wrote down none."""
    if not any(name.startswith(CODE) for name in old):
        return "what it was before is not known"
    return code[0] + (f" and {len(code) - 1} more" if code[1:] else "")


def in_words(ingredient: str) -> str:
    """The name of an ingredient as a person would say it."""
    family, _, rest = ingredient.partition(".")
    said = {"package": f"{rest} version", "config": rest, "content": rest, "input": f"input {rest}"}
    return said.get(family, ingredient)
