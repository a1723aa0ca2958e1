"""Files of samples with a planted text."""

import json
from pathlib import Path

from tests.support.training.planted import SECRET


def source(file: Path, labels: str, count: int) -> str:
    """Write rows with a planted text; labels take turns."""
    rows = ({"text": f"{SECRET}{file.stem}", "label": labels.split()[k % len(labels.split())]} for k in range(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file.name
