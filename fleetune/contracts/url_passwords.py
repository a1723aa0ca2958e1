"""Passwords in URLs, found as their consumers read them, which is not always as RFC 3986 has it."""

import re
from urllib.parse import parse_qsl, urlsplit

from fleetune.errors import Refused

UP_TO_AT = re.compile(r"[^:/?#]+://[^:/@]*:[^@]*@")
"""SQLAlchemy, and with it MLflow, takes all between the first colon and the next @ for the password, also / ? and #."""
NAMED = re.compile(r"password|passwd|pwd|passphrase|token|secret", re.IGNORECASE)
"""Names of parameters after the ? of a URL that are secrets; `passfile` names a file of them."""
IN_VALUE = re.compile(r"(?:^|;)\s*(?:pwd|password)\s*=", re.IGNORECASE)
"""A password in the settings of ODBC, which SQLAlchemy takes as the value of one parameter."""
WEB = ("http", "https")


def holds_password(url: str) -> bool:
    """True if whoever opens the URL finds a password in it."""
    return any(map(_holds, (url, *url.split("::"))))  # a chain, as fsspec takes it, or a password with :: in it


def refuse_password(setting: str, url: str, instead: str) -> None:
    """Refuse a URL with a password, which is not shown. instead: where it belongs."""
    if holds_password(url):
        raise Refused(f"{setting}: the URL holds a password, which would be kept with the run and shown; {instead}")


def _holds(url: str) -> bool:
    if "://" not in url:
        return False
    given = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    if any(NAMED.search(name) or IN_VALUE.search(value) for name, value in given):
        return True
    found = UP_TO_AT.match(url) is not None
    try:
        split = urlsplit(url)
    except ValueError:
        return found
    return split.password is not None or (found and split.scheme not in WEB)
