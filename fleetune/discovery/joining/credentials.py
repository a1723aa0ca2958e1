"""Credentials of joining: the token that a host and its devices share, the keys derived from it, and TLS certificates.

An eavesdropper can test guessed tokens offline, so a token needs high entropy; `new_token` generates one. Certificates
are ephemeral: a temporary authority signs one server and one client, and its key is then discarded.
"""

import ipaddress
import os
import secrets
import ssl
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import zmq
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from zmq.utils import z85

from fleetune.errors import Refused
from fleetune.links.authentication import KeyPair

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4096
NEW_TOKEN_BYTES = 32
GROUP_OR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKeys:
    """Key pairs of the host and of the devices; all devices with a token share one pair."""

    host: KeyPair
    device: KeyPair


def read_token(path: Path) -> str:
    """Read a token, stripped of surrounding white space; Refused if others can read or change the file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise Refused(
            f"{path}: cannot be read ({error.strerror}); give the file with the token: "
            f"fleetune join --new-token {path} writes one"
        ) from None
    if mode & GROUP_OR_OTHERS:
        raise Refused(f"{path}: others can read or change this token ({stat.filemode(mode)}); run: chmod 600 {path}")
    try:
        token = raw.decode().strip()
    except UnicodeDecodeError:
        raise Refused(f"{path}: a token is text; fleetune join --new-token FILE writes one") from None
    if not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_BYTES:
        raise Refused(
            f"{path}: a token has {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_BYTES} characters (got {len(token)}); "
            "fleetune join --new-token FILE writes one"
        )
    return token


def new_token(path: Path, random_text: Callable[[int], str] = secrets.token_urlsafe) -> None:
    """Write a random token to a new file with mode 600; Refused if the file exists."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(f"{path}: it exists, and may be a token in use; give a new file, or remove it first") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror}); give another file") from None
    with os.fdopen(file, "w", encoding="utf-8") as text:
        text.write(random_text(NEW_TOKEN_BYTES) + "\n")


def derive_keys(token: str) -> TokenKeys:
    """Derive the key pairs of both sides from a token by HKDF; deterministic."""
    return TokenKeys(host=_derive_pair(token, b"fleetune host"), device=_derive_pair(token, b"fleetune device"))


def _derive_pair(token: str, label: bytes) -> KeyPair:
    raw = HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(token.encode())
    secret = z85.encode(raw)
    return KeyPair(public=zmq.curve_public(secret), secret=secret)


VALIDITY = timedelta(days=30)
MAX_CLOCK_SKEW = timedelta(days=1)
"""Maximum difference between the clocks of two machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsCredentials:
    """Certificate, private key, and the authority that signs the other side's certificate, each as PEM text."""

    ca: str
    cert: str
    key: str = field(repr=False)

    def load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Load the credentials into a context, through a temporary file, because ssl reads keys only from files."""
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.ca)
        with tempfile.TemporaryDirectory(prefix="fleetune-join-") as folder:
            chain = Path(folder) / "chain.pem"
            chain.touch(0o600)
            chain.write_text(self.cert + self.key)
            context.load_cert_chain(chain)
        return context


@dataclass(frozen=True, slots=True)
class Authority:
    """Key and self-signed certificate of a certificate authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def issue_credentials(addresses: Sequence[str], now: datetime) -> tuple[TlsCredentials, TlsCredentials]:
    """Issue credentials for a server at `addresses` and for its one client, valid for VALIDITY from `now`."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = Authority(key, _certificate("fleetune join", key, None, now))
    names = x509.SubjectAlternativeName([_alternative_name(address) for address in addresses])
    server = _issue("server", authority, ExtendedKeyUsageOID.SERVER_AUTH, now, names)
    client = _issue("client", authority, ExtendedKeyUsageOID.CLIENT_AUTH, now)
    return server, client


def server_context(credentials: TlsCredentials) -> ssl.SSLContext:
    """Server side of mutual TLS 1.3; rejects clients that the authority has not signed."""
    return credentials.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def client_context(credentials: TlsCredentials) -> ssl.SSLContext:
    """Client side of mutual TLS 1.3; verifies the server's certificate and its address."""
    return credentials.load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def _issue(
    name: str, authority: Authority, usage: x509.ObjectIdentifier, now: datetime, *more: x509.ExtensionType
) -> TlsCredentials:
    """Credentials with a new key, whose certificate the authority signs for `usage`."""
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _certificate(name, key, authority, now, x509.ExtendedKeyUsage([usage]), *more)
    private_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return TlsCredentials(ca=_pem(authority.certificate), cert=_pem(cert), key=private_key.decode())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: Authority | None,
    now: datetime,
    *more: x509.ExtensionType,
) -> x509.Certificate:
    """Certificate of `key`; without an authority, the self-signed one of an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    is_ca = authority is None
    signing_key, issuer = (key, subject) if authority is None else (authority.key, authority.certificate.subject)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - MAX_CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_key_usage(is_ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signing_key, SHA256())


def _key_usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
