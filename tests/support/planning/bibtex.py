"""A strict parser of BibTeX entries, for tests of citations."""

import re

ENTRY = re.compile(r"@(\w+)\{([\w-]+),\n(.*)\n\}", re.DOTALL)
FIELD = re.compile(r"\s*(\w+) = \{((?:[^{}]|\{[^{}]*\})*)\}(?:,\n|$)")


def parsed(text: str) -> dict[str, dict[str, str]]:
    """Key -> fields (and `type`) of every entry in a text; fails on anything else between entries."""
    entries = {}
    for part in text.strip().split("\n\n"):
        entry = ENTRY.fullmatch(part)
        assert entry, f"no BibTeX entry: {part}"
        kind, key, body = entry.groups()
        fields, position = {"type": kind}, 0
        while position < len(body):
            field = FIELD.match(body, position)
            assert field, f"no field of {key} at: {body[position:]}"
            fields[field[1]] = " ".join(field[2].split())
            position = field.end()
        assert key not in entries, f"{key} is given twice"
        entries[key] = fields
    return entries
