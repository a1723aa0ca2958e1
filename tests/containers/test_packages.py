"""uv installs what pip would, or pip does."""

import pytest

from containers.packages import settings_for_uv

USUAL = {"UV_INDEX": "", "UV_DEFAULT_INDEX": "usual"}


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ("", USUAL),
        ("global.index-url='https://own/simple'\n", {"UV_INDEX": "", "UV_DEFAULT_INDEX": "https://own/simple"}),
        (
            "global.index-url='a'\ninstall.index-url='b'\ndownload.index-url='c'\n",
            {"UV_INDEX": "", "UV_DEFAULT_INDEX": "b"},
        ),
        (":env:.index-url='a'\nglobal.index-url='b'\n", {"UV_INDEX": "", "UV_DEFAULT_INDEX": "a"}),
        ("global.extra-index-url='\\na\\nb'\n", {"UV_INDEX": "usual a", "UV_DEFAULT_INDEX": "b"}),
        ("global.find-links='/a /b'\n", {**USUAL, "UV_FIND_LINKS": "/a,/b"}),
        (
            'global.index-url="https://me:it\'s@own/simple"\n',
            {"UV_INDEX": "", "UV_DEFAULT_INDEX": "https://me:it's@own/simple"},
        ),
        (":env:.default-timeout='180'\nglobal.cert='/etc/ca'\n", {**USUAL, "SSL_CERT_FILE": "/etc/ca"}),
        ("download.no-index='true'\n", USUAL),
        ("global.no-index='true'\n", None),
        ("global.trusted-host='own'\nglobal.index-url='a'\n", None),
        ("install.only-binary=':all:'\n", None),
    ],
)
def test_what_pip_is_configured_to_uv_is_told(listed: str, told: dict[str, str] | None) -> None:
    """Bug: of several sections, values or kinds of quotes uv was told the wrong one or none, and took public packages
    where a private index was meant; and where two indexes had a version, it took the file of the second one."""
    assert settings_for_uv(listed, "usual") == told
