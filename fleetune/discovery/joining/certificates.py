"""Throw-away certificates: an authority that signs one server and one client, and is then forgotten."""

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)
SKEW = timedelta(days=1)
"""How far the clocks of two machines may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """A certificate, its private key and the authority that vouches for the other side, each as PEM text."""

    ca: str
    cert: str
    key: str = field(repr=False)

    def load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Put them into a context; Python reads keys only from files, so there is one for a moment."""
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.ca)
        with tempfile.TemporaryDirectory(prefix="fleetune-join-") as folder:
            chain = Path(folder) / "chain.pem"
            chain.touch(0o600)
            chain.write_text(self.cert + self.key)
            context.load_cert_chain(chain)
        return context


def issue(addresses: Sequence[str], now: datetime) -> tuple[Papers, Papers]:
    """Papers of a server that is found at `addresses`, and of its one client; valid from now on for VALID."""
    key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("fleetune join", key, None, now)
    names = x509.SubjectAlternativeName([_alternative(address) for address in addresses])
    server = _signed("server", key, ca, ExtendedKeyUsageOID.SERVER_AUTH, now, names)
    client = _signed("client", key, ca, ExtendedKeyUsageOID.CLIENT_AUTH, now)
    return server, client


def server_context(papers: Papers) -> ssl.SSLContext:
    """Mutual TLS: only clients that the authority has signed get through."""
    return papers.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def client_context(papers: Papers) -> ssl.SSLContext:
    """The other side; the server must be the one that the authority has signed, under the name it is called by."""
    return papers.load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def _signed(
    name: str,
    authority: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    usage: x509.ObjectIdentifier,
    now: datetime,
    *more: x509.ExtensionType,
) -> Papers:
    key = ec.generate_private_key(ec.SECP256R1())
    cert = _certificate(name, key, (authority, ca), now, x509.ExtendedKeyUsage([usage]), *more)
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Papers(ca=_pem(ca), cert=_pem(cert), key=plain.decode())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: tuple[ec.EllipticCurvePrivateKey, x509.Certificate] | None,
    now: datetime,
    *more: x509.ExtensionType,
) -> x509.Certificate:
    """A certificate of `key`; without a signer that of an authority, which signs itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by_key, issuer, is_ca = (key, subject, True) if signer is None else (signer[0], signer[1].subject, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_usage(is_ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by_key.public_key()), critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(by_key, SHA256())


def _usage(is_ca: bool) -> x509.KeyUsage:
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


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
