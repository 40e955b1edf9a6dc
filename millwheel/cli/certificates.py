"""``millwheel certificates``: make the certificates of a cluster, and say what is in a file."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from millwheel.cli.certificate_files import CertificateAuthority, CertificateRequest, IssuedCertificate, utc_now
from millwheel.cli.options import Output
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.signing import ensure_signing_key, public_text
from millwheel.rpc.access.credentials import of_certificate
from millwheel.rpc.access.policy import ROLES
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["app"]

app = typer.Typer(help="Certificates of a cluster: make and show them.", no_args_is_help=True, add_completion=False)

_DAEMONS: Final = ("master", "authority", "worker")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_MAX_HOST: Final = 50
"""With a daemon's name before it, a common name has 64 characters at most (X.509)."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


@app.callback()
def _nouns() -> None:
    """Certificates."""


@app.command("create")
def create(
    directory: Annotated[Path, typer.Argument(help="The directory of all files; made where it is missing.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="A machine with daemons, by the names and addresses that others use for it. It gets one certificate "
            "for each daemon. May be repeated.",
        ),
    ] = None,
    daemon: Annotated[
        list[str] | None, typer.Option(help="A daemon of each machine: master, authority or worker. Default: all.")
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:ROLE,...]",
            help="A person or program, with roles for the whole cluster. Without a role, only a policy gives some. "
            "May be repeated.",
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="The name of a new CA.")] = "millwheel",
    days: Annotated[int, typer.Option(min=1, max=3_650, help="Days until the certificates end.")] = 365,
    ca_days: Annotated[int, typer.Option(min=1, max=36_500, help="Days until a new CA ends.")] = 3_650,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make certificates again that are there, with new keys.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a cluster's CA and certificates. What is there stays, so later calls add to it.

    Keep ca.key away from the machines of the cluster: it can make any certificate.
    """
    requests = [*_processes(host or [], daemon or list(_DAEMONS)), *map(_person, person or [])]
    now = utc_now()
    authority = CertificateAuthority.open(directory, cluster, ca_days, now)
    made = [authority.issued, *(authority.issue(one, days, now, renew) for one in requests)]
    if output is not OutputFormat.TABLE:
        print_plain([_plain(one) for one in made], output)
        return
    print_table(("certificate", "key", "ends", ""), [_row(one) for one in made])


def _processes(hosts: list[str], daemons: list[str]) -> list[CertificateRequest]:
    for daemon in daemons:
        if daemon not in _DAEMONS:
            raise typer.BadParameter(f"{daemon!r} is no daemon: {', '.join(_DAEMONS)}", param_hint="--daemon")
    found: list[CertificateRequest] = []
    for host in hosts:
        names = tuple(name.strip() for name in host.split(","))
        if not all(names):
            raise typer.BadParameter(f"{host!r} has an empty name", param_hint="--host")
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", names[0])
        if len(plain) > _MAX_HOST:
            raise typer.BadParameter(f"{plain} is too long for a certificate's name: begin with a shorter one")
        hosts_of = tuple(dict.fromkeys((*names, *_LOCAL)))
        found += [CertificateRequest(f"{daemon}.{plain}", ("process",), hosts_of) for daemon in daemons]
    return found


def _person(text: str) -> CertificateRequest:
    name, _, roles = text.partition(":")
    given = tuple(role for role in roles.split(",") if role)
    if not _NAME.fullmatch(name) or name == "ca":
        raise typer.BadParameter(f"{name!r} is no name for a file and a certificate", param_hint="--person")
    for role in given:
        if role not in ROLES or role == "process":
            allowed = ", ".join(one for one in ROLES if one != "process")
            raise typer.BadParameter(f"{role!r} is no role of people: {allowed}", param_hint="--person")
    return CertificateRequest(name, given)


def _row(one: IssuedCertificate) -> tuple[str, str, str, str]:
    return str(one.cert), str(one.key), f"{one.ends:%Y-%m-%d}", "made" if one.made else "as it was"


def _plain(one: IssuedCertificate) -> dict[str, Plain]:
    files: dict[str, Plain] = {"name": one.name, "certificate": str(one.cert), "key": str(one.key)}
    return {**files, "ends": _text(one.ends), "made": one.made}


@app.command("signing-key")
def signing_key(
    file: Annotated[Path, typer.Argument(help="The file of the private key; made where it is missing.")],
) -> None:
    """Make a key that signs code (`topology submit --sign-key`), and print its public key for packages.signers."""
    typer.echo(public_text(ensure_signing_key(file)))


@app.command("show")
def show(
    files: Annotated[list[Path], typer.Argument(help="PEM files with certificates.")],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say what certificates are, which roles they name, and when they end. The ids are those for a policy's lists."""
    rows = [row for path in files for row in _read(path)]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    for number, row in enumerate(rows):
        if number:
            typer.echo()
        for name, value in row.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"{name + ':':<13} {shown}")


def _read(path: Path) -> list[dict[str, Plain]]:
    content = path.read_bytes()
    if b"PRIVATE KEY" in content and b"CERTIFICATE" not in content:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{path} is a private key",
            "name the file with the certificate; the key says nothing, and is for its owner alone",
            reason="PRIVATE_KEY",
        )
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT, f"{path} has no certificate in PEM", "name the file with the certificate"
        ) from error
    return [_described(path, one) for one in found]


def _described(path: Path, certificate: x509.Certificate) -> dict[str, Plain]:
    principal = of_certificate(certificate.public_bytes(Encoding.PEM))
    days = (certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86_400
    return {
        "file": str(path),
        "kind": "CA" if _is_ca(certificate) else "certificate",
        "name": principal.name,
        "groups": list(principal.groups),
        "roles": list(principal.roles),
        "begins": _text(certificate.not_valid_before_utc),
        "ends": _text(certificate.not_valid_after_utc),
        "days_left": int(days) if days >= 0 else -1,
        "expired": days < 0,
        "serial": principal.credential,
        "fingerprint": principal.fingerprint,
    }


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False
