"""TLS between all who speak gRPC here. It is mutual: who cannot show a certificate of the cluster's is not heard.

A process has one identity, for its servers and its clients alike: its daemon's settings name it (:func:`use_tls`), or,
for programs and the tasks of a Spark job, the environment: MILLWHEEL_RPC_TLS_CA, _CERT and _KEY.

Servers read the files again when they have changed, at the next connection; clients whenever they open a channel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["ENVIRONMENT", "TlsFiles", "client_credentials", "process_tls", "server_credentials", "use_tls"]

ENVIRONMENT: Final = ("MILLWHEEL_RPC_TLS_CA", "MILLWHEEL_RPC_TLS_CERT", "MILLWHEEL_RPC_TLS_KEY")
"""The variables that name the files, where nothing else does."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: who signed everybody's certificates, the own certificate (with its chain), and its key."""

    ca: Path
    cert: Path
    key: Path


_chosen: list[TlsFiles | None] = []


def use_tls(files: TlsFiles | None) -> None:
    """Have this process speak TLS as ``files`` say, or not at all, whatever the environment says."""
    _chosen[:] = [files]


def process_tls() -> TlsFiles | None:
    """How this process speaks TLS; None: it does not. RequestError if the environment names some files, not all."""
    if _chosen:
        return _chosen[0]
    named = [os.environ.get(name, "") for name in ENVIRONMENT]
    if not any(named):
        return None
    if missing := [name for name, path in zip(ENVIRONMENT, named, strict=True) if not path]:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"TLS is mutual and takes three files, but {' and '.join(missing)} is not set",
            "name the cluster's CA, a certificate and its key, all in PEM",
        )
    return TlsFiles(*(Path(path).expanduser() for path in named))


def client_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """For a channel; the files are read now."""
    return grpc.ssl_channel_credentials(_read(files.ca), _read(files.key), _read(files.cert))


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """For a server, which reads the files again when they change; if they are then wrong, the old ones go on."""
    certificates = _Certificates(files)
    fetch = certificates.fetch
    return grpc.dynamic_ssl_server_credentials(certificates.read(), fetch, require_client_authentication=True)  # type: ignore[arg-type]  # the stubs forget that None says: as before


class _Certificates:
    """What a server shows and believes, asked at every handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen: tuple[int, ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        self._seen = self._state()
        pair = (_read(files.key), _read(files.cert))
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=_read(files.ca))

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """None: nothing is new."""
        try:
            return None if self._state() == self._seen else self.read()
        except (OSError, RequestError):
            return None

    def _state(self) -> tuple[int, ...]:
        files = self._files
        return tuple(path.stat().st_mtime_ns for path in (files.ca, files.cert, files.key))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"the TLS file {path} cannot be read: {error.strerror}",
            "see rpc.tls_ca, rpc.tls_cert and rpc.tls_key",
            reason="TLS_FILE_UNREADABLE",
        ) from error
