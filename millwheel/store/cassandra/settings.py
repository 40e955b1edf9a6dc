"""How a cluster of Cassandra is reached, and the settings of the store on it."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cassandra import ConsistencyLevel

from millwheel.store.cassandra.failures import StoreSettingsError, failure_of
from millwheel.store.contract import StoreError

__all__ = ["DEFAULT_STATE_BUCKETS", "WRITE_LEVELS", "CassandraSettings", "ClusterSettings"]

DEFAULT_STATE_BUCKETS: Final = 64

WRITE_LEVELS: Final = MappingProxyType(
    {
        "quorum": ConsistencyLevel.QUORUM,
        "each_quorum": ConsistencyLevel.EACH_QUORUM,
        "all": ConsistencyLevel.ALL,
    }
)
"""The levels at which every write shares a replica with every read at QUORUM, across all data centres."""

_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How a client reaches a cluster.

    - ``contact_points``: ``host:port`` of the first nodes to connect to. They name the other nodes.
    - ``keyspace``: that of the tables.
    - ``local_dc``: the data centre whose nodes receive the requests. Empty: that of the first contact point.
    - ``username``, ``password``: needed if Cassandra requires a login.
    - ``tls_ca``, ``tls_cert``, ``tls_key``: PEM files. Without ``tls_ca`` there is no TLS.
    - ``timeout_seconds``: the limit for one call, including its repetitions.
    - ``concurrent_writes``: the most requests in flight at once. Appends and fences do not count, and do not wait.
    - ``prefix``: what errors write before the name of a setting, so that people find it.
    """

    contact_points: tuple[str, ...] = ("127.0.0.1:9042",)
    keyspace: str = "millwheel"
    local_dc: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout_seconds: float = 10.0
    concurrent_writes: int = 16
    prefix: str = "store."

    def __post_init__(self) -> None:
        self.endpoints()

    def endpoints(self) -> list[tuple[str, int]]:
        """Return host and port of each contact point."""
        found: list[tuple[str, int]] = []
        for point in self.contact_points:
            host, _, port = point.rpartition(":")
            if not host or not port.isdigit():
                raise StoreSettingsError(
                    f"{self.prefix}contact_points: {point!r} is not host:port, such as 127.0.0.1:9042"
                )
            found.append((host.strip("[]"), int(port)))
        if not found:
            raise StoreSettingsError(
                f"{self.prefix}contact_points is empty: name one Cassandra node at least, as host:port"
            )
        return found

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS; StoreSettingsError names a file that cannot be used."""
        if self.tls_ca is None:
            if self.tls_cert is not None or self.tls_key is not None:
                raise StoreSettingsError(
                    f"{self.prefix}tls_cert and {self.prefix}tls_key need {self.prefix}tls_ca: else there is no TLS"
                )
            return None
        try:
            context = ssl.create_default_context(cafile=str(self.tls_ca))
            if self.tls_cert is not None:
                context.load_cert_chain(str(self.tls_cert), None if self.tls_key is None else str(self.tls_key))
        except (OSError, ssl.SSLError) as error:
            raise StoreSettingsError(f"{self.prefix}tls_ca, tls_cert and tls_key: {error}") from error
        return context

    def failure_of(self, error: BaseException) -> StoreError:
        """Return the contract's error for one of the driver's errors, as :func:`~.failures.failure_of` has it."""
        return failure_of(error, self.contact_points, self.username, self.keyspace, self.prefix)


@dataclass(frozen=True, slots=True)
class CassandraSettings(ClusterSettings):
    """The section ``[store]``. The keyspace is made with its tables if it is missing and the user may make it.

    - ``replication``: the number of replicas in ``local_dc``, or in each data centre: ``dc1=3,dc2=3``. It takes effect
      only when the keyspace is made.
    - ``write_consistency``: the replicas that must have a write before it is acknowledged. ``quorum``: a quorum of all.
      ``each_quorum``: a quorum in each data centre, so that the loss of one data centre loses no data. ``all``: all of
      them. Reads always use QUORUM, and conditions use SERIAL. Weaker levels would not keep two owners apart (G3).
    - ``direct_appends``: send appends on connections of their own. Else the driver sends them, as all other requests.
    - ``state_buckets``: partitions for the rows of one computation. It takes effect only when the keyspace is made.
    """

    replication: str = "1"
    write_consistency: str = "quorum"
    direct_appends: bool = True
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
        """The driver's number for ``write_consistency``."""
        return int(WRITE_LEVELS[self.write_consistency])

    def replicas(self, local_dc: str) -> dict[str, int]:
        """Return the replicas of each data centre. A plain number applies to ``local_dc``."""
        text = self.replication.strip()
        pairs = [(local_dc, text)] if text.isdigit() else [_pair(part) for part in text.split(",")]
        found = {name.strip(): int(count) for name, count in pairs if count.strip().isdigit()}
        if len(found) != len(pairs) or min(found.values()) < 1:
            raise StoreSettingsError(
                f"store.replication {self.replication!r} is neither a number of replicas nor a list as dc1=3,dc2=3"
            )
        return found


def _pair(part: str) -> tuple[str, str]:
    name, _, count = part.partition("=")
    return name, count
