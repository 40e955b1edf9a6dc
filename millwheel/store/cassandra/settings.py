"""What the store has to know to reach its Cassandra."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cassandra import ConsistencyLevel

from millwheel.store.cassandra.failures import StoreSettingsError

__all__ = ["DEFAULT_STATE_BUCKETS", "WRITE_LEVELS", "CassandraSettings"]

DEFAULT_STATE_BUCKETS: Final = 64

WRITE_LEVELS: Final = MappingProxyType(
    {
        "quorum": ConsistencyLevel.QUORUM,
        "each_quorum": ConsistencyLevel.EACH_QUORUM,
        "all": ConsistencyLevel.ALL,
    }
)
"""Those that share a replica with every read at QUORUM, in whatever data centre."""

_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class CassandraSettings:
    """The section ``[store]``.

    - ``contact_points``: ``host:port`` of the nodes that are asked first; the others are learned from them.
    - ``keyspace``: made, with its tables, where it is missing and the user may.
    - ``replication``: replicas, as a number in ``local_dc``, or for each data centre: ``dc1=3,dc2=3``. Counts when the
      keyspace is made.
    - ``local_dc``: the data centre whose nodes are asked; empty: that of the first contact point.
    - ``username``, ``password``: where Cassandra asks for them.
    - ``tls_ca``, ``tls_cert``, ``tls_key``: PEM files; without ``tls_ca``, no TLS.
    - ``timeout_seconds``: how long one call may take, its repetitions included.
    - ``write_consistency``: how many replicas have a write before it is acknowledged: ``quorum`` of all of them,
      ``each_quorum`` in each data centre (one of these may then be lost, and nothing with it), or ``all``. What is
      read is read at QUORUM, conditions are decided at SERIAL, always: nothing weaker would keep two owners apart (G3).
    - ``concurrent_writes``: requests in flight at once, but for appends and fences, which don't queue.
    - ``state_buckets``: partitions over which a computation's rows are spread. Counts when the keyspace is made.
    """

    contact_points: tuple[str, ...] = ("127.0.0.1:9042",)
    keyspace: str = "millwheel"
    replication: str = "1"
    local_dc: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout_seconds: float = 10.0
    write_consistency: str = "quorum"
    concurrent_writes: int = 16
    state_buckets: int = DEFAULT_STATE_BUCKETS

    def __post_init__(self) -> None:
        if _KEYSPACE.fullmatch(self.keyspace) is None:
            raise StoreSettingsError(
                f"store.keyspace {self.keyspace!r}: a lower-case letter, then up to 47 letters, digits and underscores"
            )
        if self.write_consistency not in WRITE_LEVELS:
            raise StoreSettingsError(
                f"store.write_consistency {self.write_consistency!r} is none of {', '.join(WRITE_LEVELS)}"
            )
        self.endpoints()
        self.replicas("dc")

    @property
    def write_level(self) -> int:
        """The driver's number of ``write_consistency``."""
        return int(WRITE_LEVELS[self.write_consistency])

    def endpoints(self) -> list[tuple[str, int]]:
        """Host and port of each contact point."""
        found: list[tuple[str, int]] = []
        for point in self.contact_points:
            host, _, port = point.rpartition(":")
            if not host or not port.isdigit():
                raise StoreSettingsError(f"store.contact_points: {point!r} is not host:port, such as 127.0.0.1:9042")
            found.append((host.strip("[]"), int(port)))
        if not found:
            raise StoreSettingsError("store.contact_points is empty: name one Cassandra node at least, as host:port")
        return found

    def replicas(self, local_dc: str) -> dict[str, int]:
        """Replicas in each data centre; a plain number counts for ``local_dc``."""
        text = self.replication.strip()
        pairs = [(local_dc, text)] if text.isdigit() else [_pair(part) for part in text.split(",")]
        found = {name.strip(): int(count) for name, count in pairs if count.strip().isdigit()}
        if len(found) != len(pairs) or min(found.values()) < 1:
            raise StoreSettingsError(
                f"store.replication {self.replication!r} is neither a number of replicas nor a list as dc1=3,dc2=3"
            )
        return found

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context, or None; StoreSettingsError names a file that cannot be used."""
        if self.tls_ca is None:
            if self.tls_cert is not None or self.tls_key is not None:
                raise StoreSettingsError("store.tls_cert and store.tls_key need store.tls_ca: else there is no TLS")
            return None
        try:
            context = ssl.create_default_context(cafile=str(self.tls_ca))
            if self.tls_cert is not None:
                context.load_cert_chain(str(self.tls_cert), None if self.tls_key is None else str(self.tls_key))
        except (OSError, ssl.SSLError) as error:
            raise StoreSettingsError(f"store.tls_ca, tls_cert and tls_key: {error}") from error
        return context


def _pair(part: str) -> tuple[str, str]:
    name, _, count = part.partition("=")
    return name, count
