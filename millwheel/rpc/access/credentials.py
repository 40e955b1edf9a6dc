"""The principal of a connection, as its client certificate says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import ANONYMOUS, Principal

__all__ = ["ROLE_UNIT", "of_certificate", "of_connection"]

ROLE_UNIT: Final = "millwheel-"
"""An organizational unit with this prefix names a role that the certificate holds: ``millwheel-process``."""

_MAX_CACHED: Final = 4_096
"""Certificates of open connections whose content is kept: one is read once and not at each call."""


def of_connection(auth: Mapping[str, Any]) -> Principal:
    """Return the principal of gRPC's ``auth_context()``. Without TLS it is anonymous."""
    certificates = auth.get("x509_pem_cert")
    return of_certificate(certificates[0]) if certificates else ANONYMOUS


@lru_cache(_MAX_CACHED)
def of_certificate(pem: bytes) -> Principal:
    """Return the principal that a client certificate (PEM) names. RequestError: it is no certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        units = _texts(certificate.subject, NameOID.ORGANIZATIONAL_UNIT_NAME)
        names = [f"name:{name}" for name in _alternative_names(certificate)]
        common = (_texts(certificate.subject, NameOID.COMMON_NAME) or [""])[0]
    except ValueError as error:
        raise RequestError(
            FailureCode.UNAUTHENTICATED,
            f"the client certificate cannot be read: {error}",
            "use one of `millwheel certificates create`",
            reason="CERTIFICATE_INVALID",
        ) from error
    return Principal(
        f"certificate:{_one_line(common)}",
        tuple(f"unit:{_one_line(unit)}" for unit in units) + tuple(_one_line(name) for name in names),
        tuple(unit.removeprefix(ROLE_UNIT) for unit in units if unit.startswith(ROLE_UNIT)),
        f"{certificate.serial_number:x}",
        certificate.fingerprint(SHA256()).hex(),
        certificate.not_valid_after_utc.timestamp(),
    )


def _texts(name: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(one.value) for one in name.get_attributes_for_oid(oid)]


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    texts = [*found.get_values_for_type(x509.DNSName), *found.get_values_for_type(x509.RFC822Name)]
    return [
        *texts,
        *found.get_values_for_type(x509.UniformResourceIdentifier),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    ]


def _one_line(text: str) -> str:
    """Return a name that forges no line of a log. It is not cut: a pattern of the policy could match the rest."""
    return "".join(one if one.isprintable() else "?" for one in text)
