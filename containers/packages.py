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

TOLD = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
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
    told = settings_for_uv(listed.stdout) if listed.returncode == 0 else None
    install = ["install", "--quiet", "--constraint", constraints]
    if told is not None and not subprocess.run([*pip, *install, "uv"], check=False).returncode:
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable]
        best = [*uv, "--quiet", "--index-strategy", "unsafe-best-match", "--constraint", constraints, *requirements]
        if not subprocess.run(best, env={**os.environ, **told}, check=False).returncode:
            return 0
    return subprocess.run([*pip, *install, *requirements], check=False).returncode


def settings_for_uv(listed: str) -> dict[str, str] | None:
    """Return the variables that tell uv what `pip config list` says; None where uv cannot be told all of it."""
    found: dict[tuple[str, str], str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section not in SECTIONS or setting in WITHOUT_EFFECT:
            continue
        if setting not in TOLD:
            return None
        found[section, setting] = ast.literal_eval(value)
    told = {setting: found[section, setting] for section in SECTIONS for setting in TOLD if (section, setting) in found}
    apart = {"find-links": ","}
    return {TOLD[setting]: apart.get(setting, " ").join(value.split()) for setting, value in told.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
