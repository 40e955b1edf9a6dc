"""Makes and reads the certificates of a cluster: its CA, one for each daemon, and those of people and programs.

Keys are ECDSA on P-256, in PEM files that only their user may read. Certificates serve both sides of mutual TLS.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from millwheel.rpc.access.credentials import ROLE_UNIT
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["CertificateAuthority", "CertificateRequest", "IssuedCertificate", "utc_now", "write_key"]

_EARLIER: Final = timedelta(minutes=5)
"""A new certificate counts from this time before now, for machines whose clocks are behind."""


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """What a certificate is for.

    Attributes:
        name: Its common name, and the name of its files.
        roles: The roles that it names, for the whole cluster.
        hosts: The host names and addresses of a server. Empty: a client's certificate.
    """

    name: str
    roles: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate in a file, and its key's file."""

    name: str
    cert: Path
    key: Path
    ends: datetime
    made: bool
    """Whether it was made now. False: it was there."""


class CertificateAuthority:
    """The CA of a cluster, in a folder: ``ca.pem`` and ``ca.key``."""

    def __init__(
        self, folder: Path, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey, made: bool = False
    ) -> None:
        self._made = made
        self._folder = folder
        self._cert = cert
        self._key = key

    @classmethod
    def open(cls, folder: Path, cluster: str, days: int, now: datetime) -> CertificateAuthority:
        """Read the CA in ``folder``, or make it if the folder has none."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        cert_file, key_file = folder / "ca.pem", folder / "ca.key"
        if cert_file.exists() != key_file.exists():
            missing = key_file if cert_file.exists() else cert_file
            raise _refused(f"{missing} is missing", "bring it back, or begin with an empty directory")
        if cert_file.exists():
            return cls(folder, x509.load_pem_x509_certificate(cert_file.read_bytes()), _read_key(key_file))
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(cluster, ())
        builder = _builder(subject, subject, key.public_key(), days, now)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        cert = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        write_key(key_file, key)
        _write(cert_file, cert.public_bytes(serialization.Encoding.PEM), 0o644)
        return cls(folder, cert, key, True)

    @property
    def issued(self) -> IssuedCertificate:
        """The CA's own certificate."""
        files = self._folder / "ca.pem", self._folder / "ca.key"
        return IssuedCertificate(_common_name(self._cert), *files, self._cert.not_valid_after_utc, self._made)

    def issue(self, request: CertificateRequest, days: int, now: datetime, renew: bool) -> IssuedCertificate:
        """Make a certificate. One that is there stays, except with ``renew``."""
        cert_file, key_file = self._folder / f"{request.name}.pem", self._folder / f"{request.name}.key"
        if cert_file.exists() and not renew:
            known = x509.load_pem_x509_certificate(cert_file.read_bytes())
            return IssuedCertificate(request.name, cert_file, key_file, known.not_valid_after_utc, False)
        last = int((self._cert.not_valid_after_utc - now) / timedelta(days=1))
        if last < 1:
            raise _refused(f"the CA {self._folder / 'ca.pem'} ends within a day", "make a new CA in another directory")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            _subject(request.name, request.roles), self._cert.subject, key.public_key(), min(days, last), now
        )
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(
            x509.KeyUsage(True, False, False, False, False, False, False, False, False), critical=True
        )
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if request.hosts else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        if request.hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in request.hosts])
            builder = builder.add_extension(names, critical=False)
        cert = builder.sign(self._key, hashes.SHA256())
        write_key(key_file, key)
        _write(cert_file, cert.public_bytes(serialization.Encoding.PEM), 0o644)
        return IssuedCertificate(request.name, cert_file, key_file, cert.not_valid_after_utc, True)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, now: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _subject(name: str, roles: Sequence[str]) -> x509.Name:
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, ROLE_UNIT + role) for role in roles]
    return x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _common_name(cert: x509.Certificate) -> str:
    return str(cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise _refused(f"{path} is no private key without a password", "name the folder of the CA") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _refused(f"the key in {path} is not on an elliptic curve", "use a CA that this command has made")
    return key


def write_key(path: Path, key: PrivateKeyTypes) -> None:
    """Write a private key that only its user may read."""
    form = serialization.PrivateFormat.PKCS8
    _write(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()), 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file under a temporary name first: a daemon that reads it finds the old or the new one, never a part."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    temporary.replace(path)


def _refused(message: str, remedy: str) -> RequestError:
    return RequestError(FailureCode.FAILED_PRECONDITION, message, remedy, reason="CERTIFICATE_FOLDER_UNFIT")


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
