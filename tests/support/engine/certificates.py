"""Certificates as mutual TLS with an engine needs them, made for a test and valid for an hour."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HOUR = datetime.timedelta(hours=1)
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


class Authority:
    """A CA of its own, and what it signs."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority of a test")
        usage = x509.KeyUsage(
            **dict.fromkeys(
                "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
                "encipher_only decipher_only".split(),
                False,
            ),
            key_cert_sign=True,
            crl_sign=True,
        )
        builder = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), True
        )
        self._certificate = builder.add_extension(usage, True).sign(self._key, hashes.SHA256())

    def issue(self, folder: Path, *, addresses: Sequence[str] = ()) -> Path:
        """A folder with ca.pem, cert.pem and key.pem: a server's at `addresses`, without these a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name("server" if addresses else "client"), key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([SERVER if addresses else CLIENT]), False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
        )
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        folder.mkdir(parents=True)
        (folder / "ca.pem").write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        (folder / "key.pem").write_bytes(private)
        return folder

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR)
            .not_valid_after(now + HOUR)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
