"""A style sheet for Prefect's UI: the fields of a run's form stand in columns, so that the form fits one screen.

Prefect draws one field below the other, each as wide as the window, and no schema can change that. The sheet is put
into the copy of the UI that the service serves. Where a release of Prefect builds its form otherwise, the form is long
again, and works.
"""

import re
from contextlib import suppress
from pathlib import Path

PAGE = Path("v2") / "index.html"
HEAD_ENDS = "</head>"
RULES = (
    "form div:has(> .group > fieldset) {"
    " display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); align-items: start; }"
)
STYLE = f'<style id="fleetune">{RULES}</style>'
_PUT_BEFORE = re.compile(r'<style id="fleetune">.*?</style>', re.DOTALL)


def put_form_in_columns(ui: Path) -> None:
    """Put the style sheet into the copy of the UI in the folder `ui`, once; a copy that cannot be written stays."""
    page = ui / PAGE
    with suppress(OSError, UnicodeDecodeError):
        found = page.read_text(encoding="utf-8")
        wanted = _PUT_BEFORE.sub("", found).replace(HEAD_ENDS, STYLE + HEAD_ENDS, 1)
        if wanted != found:
            part = page.with_suffix(".part")
            part.write_text(wanted, encoding="utf-8")
            part.replace(page)
