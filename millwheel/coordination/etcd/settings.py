"""The settings of the coordinator on etcd."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

__all__ = ["EtcdSettings"]


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The settings of the ``[coordinator]`` section that concern etcd."""

    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    """``host:port`` of each member. One that answers is enough."""
    prefix: str = "millwheel/"
    """The prefix of every key. With different prefixes, one etcd serves several MillWheel clusters."""
    username: str = ""
    password: str = field(default="", repr=False)
    tls_ca: Path | None = None
    """PEM file of the authority that signed etcd's certificates. None: no TLS."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout: float = 5.0
    """Seconds until an unanswered call fails."""
    history: float = 300.0
    """Seconds for which etcd keeps old revisions. A watch that is disconnected for less time misses nothing.
    Older revisions are compacted; otherwise etcd's space would run out. 0: etcd itself must compact."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("coordinator.endpoints is empty: name at least one member of etcd, as host:port")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("coordinator.tls_cert and coordinator.tls_key go together: give both, or neither")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("coordinator.tls_cert without coordinator.tls_ca: name the file of who signed etcd's own")
        if bool(self.username) != bool(self.password):
            raise ValueError("coordinator.username and coordinator.password go together: give both, or neither")
        if self.timeout <= 0:
            raise ValueError(f"coordinator.timeout_seconds is {self.timeout}: give a number above 0")

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials for a channel with TLS, or None. ValueError if a file cannot be read."""
        if self.tls_ca is None:
            return None
        return grpc.ssl_channel_credentials(
            _read("tls_ca", self.tls_ca), _read("tls_key", self.tls_key), _read("tls_cert", self.tls_cert)
        )


def _read(setting: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"coordinator.{setting}: {error}") from error
