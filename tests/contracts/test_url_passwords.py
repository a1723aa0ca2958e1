"""Passwords in URLs, as those who open them find them."""

import pytest
from sqlalchemy.engine import make_url

from fleetune.contracts.tracking import MlflowRequest
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import Refused
from fleetune.store import Store


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:hush@db/x",
        "mysql://ann:hu/sh@db/x",
        "mysql://ann:hu?sh@db/x",
        "mysql://ann:#hush@db",
        "mysql://:h@db",
        "mysql://ann:hu::sh@db/x",
    ],
)
def test_what_sqlalchemy_takes_for_a_password(url: str) -> None:
    """A password with a / ? or # in it is none to RFC 3986, and one to SQLAlchemy and MLflow: it is refused."""
    assert make_url(url).password and holds_password(url)
    with pytest.raises(Refused, match="names a user or password") as refused:
        MlflowRequest(uri=url)
    assert not any(part in str(refused.value) for part in ("hu", "sh@"))


@pytest.mark.parametrize(
    "url",
    ["mssql+pyodbc:///?odbc_connect=Driver%3DX%3BUID%3Dsa%3BPWD%3Dhush", "webhdfs://h/x?token=hush",
     "postgresql://db/x?ssl_passphrase=hush", "snowflake://a/b?private_key_passphrase=hush"],
)  # fmt: skip
def test_parameters_that_hold_one(url: str) -> None:
    """Drivers take passwords as parameters of several names, and ODBC's within a value."""
    assert holds_password(url)


@pytest.mark.parametrize(
    "url",
    ["sqlite:////srv/x.db", "mysql://ann@db/x", "http://host:5000/a@b", "http://[::1]:5000", "runs", "ssh://ann@attic:22",
     "ssh://ann@[::1]:22",     "s3://bucket/a:b", "simplecache::s3://bucket/x", "postgresql://db/x?passfile=/srv/pgpass"],
)  # fmt: skip
def test_a_url_without_one(url: str) -> None:
    """Colons and @ elsewhere make no password, nor does the path of a file of passwords."""
    assert not holds_password(url)


@pytest.mark.parametrize(
    "root", ["ftp://ann:hush@host/x", "simplecache::ftp://ann:hush@host/x", "ftp://ann:h/ush@host"]
)
def test_a_store_whose_url_holds_one(root: str) -> None:
    """The URL of a store stands in records, and in commands that every user of the machine can read."""
    with pytest.raises(Refused, match="its URL holds a password") as refused:
        Store(root)
    assert "ush" not in str(refused.value)
