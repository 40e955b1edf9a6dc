"""The principal of a connection: what the client certificate says, or a process that acts for a person."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import ANONYMOUS, Principal, acting_as

__all__ = [
    "ON_BEHALF",
    "ROLE_UNIT",
    "calling_for",
    "delegated",
    "delegation",
    "from_metadata",
    "of_certificate",
    "of_connection",
]

ROLE_UNIT: Final = "millwheel-"
"""An organizational unit with this prefix names a role that the certificate holds: ``millwheel-process``."""

ON_BEHALF: Final = "millwheel-principal-bin"
"""Metadata of a call that a process makes for a person: the web console. Only a process may send it."""

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


def delegated(principal: Principal) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of a call that this process makes for ``principal``."""
    fields = [principal.name, principal.groups, principal.roles, principal.credential]
    return ((ON_BEHALF, json.dumps([*fields, principal.fingerprint, principal.expires]).encode()),)


_for: ContextVar[Principal | None] = ContextVar("calls for", default=None)


@contextmanager
def calling_for(principal: Principal) -> Iterator[None]:
    """Make the calls of a block for a person. The person is also the principal of the block."""
    token = _for.set(principal)
    try:
        with acting_as(principal):
            yield
    finally:
        _for.reset(token)


def delegation() -> tuple[tuple[str, bytes], ...] | None:
    """Return the metadata of a call within :func:`calling_for`. None outside."""
    principal = _for.get()
    return None if principal is None else delegated(principal)


def from_metadata(value: bytes) -> Principal:
    """Return the principal for whom a process makes a call. RequestError: the value has another form."""
    try:
        name, groups, roles, credential, fingerprint, expires = json.loads(value)
        return Principal(name, tuple(groups), tuple(roles), credential, fingerprint, float(expires))
    except (ValueError, TypeError) as error:
        raise RequestError(
            FailureCode.UNAUTHENTICATED,
            f"the metadata {ON_BEHALF} cannot be read",
            "only a console of the same version sends it",
            reason="PRINCIPAL_MALFORMED",
        ) from error
