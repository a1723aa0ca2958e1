"""What goes wrong with an engine, whoever talks to it."""

import requests
from docker.errors import DockerException

SILENT = (DockerException, requests.RequestException, OSError)
"""What an engine raises that refuses, or has gone away."""


def why(error: BaseException) -> str:
    """An engine's complaint in one line."""
    said = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())[:300]
