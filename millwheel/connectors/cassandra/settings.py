"""The file with which workers reach a cluster of Cassandra. No address and no password is in the program."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
from cassandra import ConsistencyLevel

from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.connectors.handles import CALL_SECONDS
from millwheel.errors import did_you_mean
from millwheel.sdk.known_types import known
from millwheel.store.cassandra.settings import ClusterSettings

__all__ = ["CassandraAccess", "read_settings"]

_MAX_SECONDS: Final = 20
"""A write is a conditional update and then the rows: both need their part of the minute that a call has."""
_SPARE_SECONDS: Final = 1
"""How much before the end of the call the last request ends, so that its error is seen."""


class _File(msgspec.Struct):
    """What the file has. ``docs/cassandra.md`` explains it."""

    contact_points: list[str]
    local_dc: str = ""
    username: str = ""
    password: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    consistency: Literal["quorum", "local_quorum", "each_quorum", "all"] = "quorum"
    timeout_seconds: float = 10.0


known(_File)  # shards read the file on threads of their own


class CassandraAccess(NamedTuple):
    """How a writer reaches the cluster.

    Attributes:
        cluster: Where it is, and how it lets one in.
        level: The consistency of writes, as the driver numbers it.
        serial: That of the conditional updates.
    """

    cluster: ClusterSettings
    level: int
    serial: int

    @property
    def send_seconds(self) -> float:
        """How long after its beginning a write still sends rows. What it sends last ends within the call.

        A process that was paused does not send what has become old.
        """
        return CALL_SECONDS - _SPARE_SECONDS - self.cluster.timeout_seconds


def read_settings(path: str, keyspace: str) -> CassandraAccess:
    """Read the file.

    Raises:
        CassandraError: It is not there, or what it says cannot be used.
        StoreSettingsError: A contact point is none.
    """
    known = _converted(path)
    if not 0.1 <= known.timeout_seconds <= _MAX_SECONDS:
        raise CassandraError(f"{path}: timeout_seconds is {known.timeout_seconds:g}: 0.1 to {_MAX_SECONDS} can be set")
    if known.consistency == "local_quorum" and not known.local_dc:
        raise CassandraError(
            f"{path}: consistency = 'local_quorum' needs local_dc, the same one for all workers: else two processes "
            "could write a shard in two data centres at once"
        )
    folder = Path(path).parent
    tls = {name: folder / file for name in ("tls_ca", "tls_cert", "tls_key") if (file := getattr(known, name))}
    cluster = ClusterSettings(
        contact_points=tuple(known.contact_points),
        keyspace=keyspace,
        local_dc=known.local_dc,
        username=known.username,
        password=known.password,
        timeout_seconds=known.timeout_seconds,
        prefix="",
        **tls,
    )
    level = getattr(ConsistencyLevel, known.consistency.upper())
    local = known.consistency == "local_quorum"
    return CassandraAccess(cluster, level, ConsistencyLevel.LOCAL_SERIAL if local else ConsistencyLevel.SERIAL)


def _converted(path: str) -> _File:
    try:
        content: dict[str, Any] = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise CassandraError(
            f"the settings {path} cannot be read ({error.strerror}): each worker needs the file, with "
            'contact_points = ["HOST:9042"] at least'
        ) from error
    except ValueError as error:
        raise CassandraError(f"the settings {path} are no TOML: {error}") from error
    names = _File.__struct_fields__
    if unknown := [name for name in content if name not in names]:
        meant = did_you_mean(unknown[0], names)
        raise CassandraError(f"{path}: {unknown[0]} is unknown{meant}: there are {', '.join(names)}")
    try:
        return msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise CassandraError(f"{path}: {error}") from error
