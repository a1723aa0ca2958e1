"""Commands that the README and the documentation show."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
COMMAND = re.compile(r"^ {4,}\.venv/bin/fleetune (.+?)(?: +#.*)?$", re.MULTILINE)
README = COMMAND.findall((REPOSITORY / "README.md").read_text())
COMMANDS = sorted(
    {*README, *(c for page in (REPOSITORY / "docs").glob("*.md") for c in COMMAND.findall(page.read_text()))}
)
