"""Golden texts: what was drawn or planned once and looked at. FLEETUNE_RENEW_GOLDEN=1 rewrites them; read the diff."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def same_as_golden(name: str, text: str) -> None:
    """Fail with both texts unless `text` equals the file `name`."""
    file = FOLDER / name
    if os.environ.get("FLEETUNE_RENEW_GOLDEN") == "1":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"{name}: FLEETUNE_RENEW_GOLDEN=1 renews it"
