"""HTTP access to Prefect: loopback addresses bypass proxies, and an API that the user configured is checked before
anything is written."""

import functools
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import MutableMapping
from urllib.parse import urlsplit

from fleetune.errors import Refused, TryAgain

LOOPBACK = ("127.0.0.1", "localhost", "::1")
VARIABLES = ("NO_PROXY", "no_proxy")
TIMEOUT_S = 10.0
NEEDS_KEY = (401, 403)
"""Statuses of an API that answers but asks for a key."""


def bypass_proxies_for_loopback(environment: MutableMapping[str, str]) -> None:
    """Add loopback addresses to NO_PROXY, for this process and its children; existing entries stay."""
    for name in [name for name in VARIABLES if name in environment] or VARIABLES:
        listed = [host.strip() for host in environment.get(name, "").split(",") if host.strip()]
        if "*" not in listed:  # which means all, and only by itself
            environment[name] = ",".join([*listed, *(host for host in LOOPBACK if host not in listed)])


def ignore_proxies() -> None:
    """Make Prefect's clients ignore the proxy variables, since a proxy scheme that httpx does not support (socks5)
    makes every call fail. Only for a server of this machine; imports Prefect."""
    from prefect.client import base

    for client in (base.PrefectHttpxAsyncClient, base.PrefectHttpxSyncClient):
        client.__init__ = functools.partialmethod(client.__init__, trust_env=False)  # type: ignore[assignment]


def is_loopback(address: str) -> bool:
    """True for a URL on a loopback address."""
    return urlsplit(address).hostname in LOOPBACK


def check_api(address: str, name: str) -> None:
    """Ask the Prefect API at `address`, the value of setting `name`, for its health, through proxies as clients do.

    Refused: not an address. TryAgain: no such API answers there.
    """
    instead = f"or unset {name} to have a server started here"
    given = f"{name} is {address}"
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise Refused(f"{given}: it is not a URL; give one such as http://127.0.0.1:4200/api, {instead}")
    request = urllib.request.Request(address.rstrip("/") + "/health")
    if key := os.environ.get("PREFECT_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        status = _status_of(request)
    except ssl.SSLError:
        return  # a server answers; the client decides whether to trust it
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        if isinstance(why, ssl.SSLError):
            return
        why = getattr(why, "strerror", None) or why
        raise TryAgain(f"{given}, where nothing answers{_proxy_note(address)} ({why}): start it, {instead}") from None
    if status != http.client.OK and status not in NEEDS_KEY:
        said = f"{status} {http.client.responses.get(status, '')}".rstrip()
        raise TryAgain(
            f"{given}, where no Prefect API answers{_proxy_note(address)} ({said} at {request.full_url}): "
            f"correct the address, {instead}"
        )


def _status_of(request: urllib.request.Request) -> int:
    """The HTTP status of the answer."""
    try:
        with urllib.request.build_opener().open(request, timeout=TIMEOUT_S) as answer:  # reads the proxies of now
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _proxy_note(address: str) -> str:
    """`through the proxy HOST` when the address is reached through one, else empty."""
    parts = urlsplit(address)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    return f" through the proxy {urlsplit(proxy).hostname or proxy}"
