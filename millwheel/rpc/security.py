"""TLS between all who speak gRPC here. It is mutual: who cannot show a certificate of the cluster's is not heard.

Which files, :mod:`millwheel.rpc.identity` says. Servers read them again when they have changed, at the next connection;
clients whenever they open a channel.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles

__all__ = ["client_credentials", "server_credentials"]


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
