"""`PYTHON -m containers.packages CONSTRAINTS REQUIREMENT ...` installs packages beside the Python that runs it.

By uv, which takes a sixth of pip's time. It does not read pip's configuration, and is told what that says of indexes;
where it says more, or where uv fails, pip installs.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

USUAL_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
"""Program that prints the index that pip uses where none is configured."""
INDEXES = ("index-url", "extra-index-url")
TOLD = {
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
}
"""Setting of pip -> variable that tells uv the same."""
WITHOUT_EFFECT = {"default-timeout", "timeout", "disable-pip-version-check", "quiet", "no-color", "progress-bar"}
"""Settings of pip that change nothing of what is installed."""
SECTIONS = ("global", "install", ":env:")
"""Parts of the configuration that count for an installation; a later one counts before an earlier one."""


def main(arguments: Sequence[str]) -> int:
    """Install; return the exit code."""
    constraints, *requirements = arguments
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False)
    usual = subprocess.run([sys.executable, "-c", USUAL_INDEX], capture_output=True, text=True, check=False)
    told = None if listed.returncode or usual.returncode else settings_for_uv(listed.stdout, usual.stdout.strip())
    install = ["install", "--quiet", "--constraint", constraints]
    if told is not None and not subprocess.run([*pip, *install, "uv"], check=False).returncode:
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable]
        best = [*uv, "--quiet", "--index-strategy", "unsafe-best-match", "--constraint", constraints, *requirements]
        if not subprocess.run(best, env={**os.environ, **told}, check=False).returncode:
            return 0
    return subprocess.run([*pip, *install, *requirements], check=False).returncode


def settings_for_uv(listed: str, usual_index: str) -> dict[str, str] | None:
    """Return the variables that tell uv what `pip config list` says; None where uv cannot be told all of it.

    Of files of one version uv takes those of the index that it is told first, and its default one is the last.
    """
    found: dict[tuple[str, str], str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section not in SECTIONS or setting in WITHOUT_EFFECT:
            continue
        if setting not in (*INDEXES, *TOLD):
            return None
        found[section, setting] = ast.literal_eval(value)
    last = {
        setting: value.split() for section in SECTIONS for (part, setting), value in found.items() if part == section
    }
    *first, default = *last.pop("index-url", [usual_index]), *last.pop("extra-index-url", [])
    told = {TOLD[setting]: ("," if setting == "find-links" else " ").join(values) for setting, values in last.items()}
    return {"UV_INDEX": " ".join(first), "UV_DEFAULT_INDEX": default, **told}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
