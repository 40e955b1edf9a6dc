"""TLS for all of MillWheel's gRPC connections. It is mutual: each side must show a certificate of the cluster.
A client may send a token as well.

:mod:`millwheel.rpc.identity` names the files. A server reads changed files at the next connection, and a client
before its next call (:mod:`millwheel.rpc.renewed_channel`).
"""

from __future__ import annotations

from pathlib import Path

import grpc

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles, TokenSource

__all__ = ["client_credentials", "server_credentials"]


def client_credentials(files: TlsFiles, token: TokenSource | None = None) -> grpc.ChannelCredentials:
    """Return the credentials for a channel. The files are read now, and a token for each call."""
    channel = grpc.ssl_channel_credentials(_read(files.ca), _read(files.key), _read(files.cert))
    if token is None:
        return channel
    token.read()
    return grpc.composite_channel_credentials(channel, grpc.metadata_call_credentials(_Bearer(token), "millwheel"))


class _Bearer(grpc.AuthMetadataPlugin):
    """Adds the token to each call. gRPC runs it in a thread, and only on a channel with TLS."""

    def __init__(self, token: TokenSource) -> None:
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            callback((("authorization", f"Bearer {self._token.read()}"),), None)
        except RequestError as error:
            callback((), error)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return the credentials for a server. It rereads changed files; if they are wrong, the old ones stay in use."""
    certificates = _Certificates(files)
    fetch = certificates.fetch
    return grpc.dynamic_ssl_server_credentials(certificates.read(), fetch, require_client_authentication=True)  # type: ignore[arg-type]  # None means "unchanged", which the stubs omit


class _Certificates:
    """A server's certificate and its authority. gRPC calls :meth:`fetch` at every handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen: tuple[int, ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        self._seen = files.stamp()
        pair = (_read(files.key), _read(files.cert))
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=_read(files.ca))

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the changed certificates, or None if nothing changed or the new files are wrong."""
        try:
            return None if self._files.stamp() == self._seen else self.read()
        except (OSError, RequestError):
            return None


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
