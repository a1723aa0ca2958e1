"""Cards of data sets: the README.md of a hub repository says which of its files are which set and split."""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fleetune.data.public_words import Told
from fleetune.data.splits import TRAIN, split_names
from fleetune.formatting import shortlist

CARD = "README.md"
CONFIGS = re.compile(r"^---\s*$.*?^configs:.*?^---\s*$", re.DOTALL | re.MULTILINE)
CHOICES = re.compile(r"\{([^{}]*)\}")
BY_NAME = ""
"""Split of files whose names tell it."""
LIST = "list what trains in data.files, and name what is tested on in data.validation"
Patterns = tuple[tuple[str, str], ...]
"""(split, pattern of files) of one set."""


def check_one_set(folder: Path, files: Collection[Path]) -> dict[str, dict[Path, frozenset[str]]]:
    """Refuse files that a folder's card gives to several sets; name -> file -> splits of the only one, if any."""
    found = {name: _splits_by_file(folder, files, patterns) for name, patterns in _sets(folder).items()}
    sets = {name: given for name, given in found.items() if given}
    if len(sets) > 1:
        raise Told(
            "{}: its README.md has several sets ({}); set data.source to the folder of one, or list its files in "
            "data.files",
            folder,
            "; ".join(f"{name}: {_some(folder, given)}" for name, given in sets.items()),
        )
    return sets


def other_splits(folder: Path, files: Collection[Path]) -> dict[Path, str]:
    """Files that a folder's card gives to a split that neither trains nor tests by its name -> that split."""
    return {
        file: min(said)
        for given in check_one_set(folder, files).values()
        for file, said in given.items()
        if BY_NAME not in said and not any(map(split_names, said))
    }


def check_card(folder: Path, splits: Mapping[str, tuple[Path, ...]]) -> None:
    """Refuse files, by split, that a folder's card gives to several sets, to none, or to train where they test."""
    sets = check_one_set(folder, [file for files in splits.values() for file in files])
    for given in sets.values():
        for name, files in splits.items():
            of_card = {file: given.get(file, frozenset()) for file in files}
            unlike = [file for file, said in of_card.items() if BY_NAME not in said and not _is_split(name, said)]
            if unlike:
                raise Told(
                    "{}: {} would be read as {}, and its README.md says that it is {}; {do}",
                    folder,
                    unlike[0].relative_to(folder),
                    name,
                    " and ".join(sorted(of_card[unlike[0]])) or "no part of the set",
                    do=LIST,
                )


def check_together(folder: Path, splits: Mapping[str, tuple[Path, ...]]) -> None:
    """Refuse files that are read as one split, and that a folder's card gives to several."""
    several = {name: files for name, files in splits.items() if len(files) > 1}
    for given in check_one_set(folder, [file for files in several.values() for file in files]).values():
        for name, files in several.items():
            of_card = [given.get(file, frozenset()) for file in files]
            if not frozenset.intersection(*of_card):
                raise Told(
                    "{}: {} would be read as {} together, and its README.md has the splits {} of them; {do}",
                    folder,
                    _some(folder, files),
                    name,
                    " and ".join(sorted(frozenset().union(*of_card))),
                    do=LIST,
                )


def _is_split(name: str, said: Collection[str]) -> bool:
    """Whether files that train, or do not, may be what a card says that they are."""
    return bool(said) and any(TRAIN in split_names(split) for split in said) == (name == TRAIN)


def _splits_by_file(folder: Path, files: Collection[Path], patterns: Patterns) -> dict[Path, frozenset[str]]:
    """Files that one set of a card has -> their splits; the only split of a set trains, unless its name says that it
    is tested on."""
    found: dict[Path, frozenset[str]] = {}
    only = len({split for split, _ in patterns}) == 1
    for file in files:
        name = file.relative_to(folder).as_posix()
        given = [
            split
            for split, pattern in patterns
            if any(fnmatch(name, each) for each in (pattern, f"{pattern}/*", pattern.replace("**/", "")))
        ]
        if given:
            found[file] = frozenset(TRAIN if split and only and not split_names(split) else split for split in given)
    return found


def _some(folder: Path, files: Collection[Path]) -> str:
    return shortlist(file.relative_to(folder) for file in files)


def _sets(folder: Path) -> dict[str, Patterns]:
    """The sets of a folder's card, by name; empty if it has no card, or one that lists none."""
    try:
        text = (folder / CARD).read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return {}
    if not CONFIGS.match(text):
        return {}
    from huggingface_hub.repocard import metadata_load  # most folders have no card

    try:
        configs = (metadata_load(folder / CARD) or {}).get("configs") or []
        return {str(each.get("config_name", "default")): _patterns(each) for each in configs}
    except Exception as error:  # of the library that parses it, or of values that are none of a card
        raise Told("{}: its README.md cannot be read ({}); mend or remove it", folder, type(error).__name__) from None


def _patterns(config: Mapping[str, Any]) -> Patterns:
    below = f"{str(config['data_dir']).strip('/')}/" if config.get("data_dir") else ""
    files = config.get("data_files")
    if files is None:
        return ((BY_NAME, f"{below}*"),) if below else ()
    if isinstance(files, Mapping):
        files = [{"split": split, "path": path} for split, path in files.items()]
    entries = [each if isinstance(each, Mapping) else {"split": TRAIN, "path": each} for each in _list(files)]
    every = [(str(each["split"]), str(path)) for each in entries for path in _list(each["path"])]
    return tuple(
        (split, below + each) for split, path in every for each in _chosen(path.removeprefix("./").rstrip("/"))
    )


def _chosen(pattern: str) -> list[str]:
    """A pattern with each of its choices, such as `{train,test}*.csv`."""
    found = CHOICES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [each for choice in found[1].split(",") for each in _chosen(f"{before}{choice}{after}")]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
