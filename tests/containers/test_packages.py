"""uv installs what pip would, or pip does."""

import pytest

from containers.packages import settings_for_uv


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ("", {}),
        ("global.index-url='https://own/simple'\n", {"UV_DEFAULT_INDEX": "https://own/simple"}),
        ("global.index-url='a'\ninstall.index-url='b'\ndownload.index-url='c'\n", {"UV_DEFAULT_INDEX": "b"}),
        (":env:.index-url='a'\nglobal.index-url='b'\n", {"UV_DEFAULT_INDEX": "a"}),
        ("global.extra-index-url='\\na\\nb'\n", {"UV_INDEX": "a b"}),
        ("global.find-links='/a /b'\n", {"UV_FIND_LINKS": "/a,/b"}),
        ('global.index-url="https://me:it\'s@own/simple"\n', {"UV_DEFAULT_INDEX": "https://me:it's@own/simple"}),
        (":env:.default-timeout='180'\nglobal.cert='/etc/ca'\n", {"SSL_CERT_FILE": "/etc/ca"}),
        ("download.no-index='true'\n", {}),
        ("global.no-index='true'\n", None),
        ("global.trusted-host='own'\nglobal.index-url='a'\n", None),
        ("install.only-binary=':all:'\n", None),
    ],
)
def test_what_pip_is_configured_to_uv_is_told(listed: str, told: dict[str, str] | None) -> None:
    """Bug: of several sections, values or kinds of quotes uv was told the wrong one or none, and took public packages
    where a private index was meant."""
    assert settings_for_uv(listed) == told
