"""The browser of this machine."""

import shutil

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Path of the browser of this machine; empty where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), "")
