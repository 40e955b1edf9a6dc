"""Every setting of the daemons, typed, by section. docs/operations.md lists them; a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from millwheel.config.addresses import (
    TAKES_ADDRESS,
    TAKES_ADDRESSES,
    address,
    addresses,
    optional_address,
    optional_url,
)
from millwheel.config.declaring import setting
from millwheel.config.kinds import one_line
from millwheel.config.locations import TAKES_LOCATIONS, locations
from millwheel.model.formats import NEWEST_FORMAT

__all__ = [
    "AuthoritySection",
    "ClusterSection",
    "CoordinatorSection",
    "LoggingSection",
    "MasterSection",
    "MetricsSection",
    "OtlpSection",
    "RpcSection",
    "SecuritySection",
    "Settings",
    "StoreSection",
    "WorkerSection",
]


def _listen(text: str) -> str:
    if text in ("", "off"):
        return text
    try:
        return address(text)
    except ValueError as error:
        raise ValueError(f'{error}, or "off"') from error


@dataclass(frozen=True, slots=True)
class ClusterSection:
    """The settings that all daemons of a cluster share."""

    authority_shards: int = setting(
        2,
        "Number of shards of the low watermark authority. It is fixed when the cluster starts for the first time.",
        bounds=(1, 1_000),
    )
    format: int = setting(
        0,
        "Format to which this daemon raises the cluster (docs/upgrading.md); 0: it stays as it is.",
        bounds=(0, NEWEST_FORMAT),
    )


@dataclass(frozen=True, slots=True)
class CoordinatorSection:
    """The storage of ownership, leadership and topologies."""

    kind: Literal["etcd", "embedded"] = setting(
        "etcd", "etcd for a cluster; embedded for one process alone, on its disk."
    )
    endpoints: tuple[str, ...] = setting(
        ("127.0.0.1:2379",), "etcd's members: host:port of each.", check=addresses, allowed=TAKES_ADDRESSES
    )
    prefix: str = setting("millwheel/", "Keys begin with it: one prefix for each cluster that shares an etcd.")
    username: str = setting("", "etcd user, where etcd asks for one.")
    password: str = setting("", "The user's password.", secret=True)
    tls_ca: Path | None = setting(None, "PEM file of the authority that signed etcd's certificates; empty: no TLS.")
    tls_cert: Path | None = setting(None, "PEM file of the certificate that etcd is shown.")
    tls_key: Path | None = setting(None, "PEM file of that certificate's key.")
    timeout_seconds: float = setting(
        5.0,
        "The most seconds that one call to etcd may take.",
        bounds=(0.1, 600),
    )
    history_seconds: float = setting(
        300.0,
        "Seconds of changes that etcd keeps, so that a watch that was cut off misses nothing. The daemons compact "
        "what is older. 0: they do not; set etcd's --auto-compaction-retention, or space runs out.",
        bounds=(0, 86_400),
    )
    path: Path | None = setting(None, "Directory of the embedded coordinator (the embedded store's, if they share it).")


@dataclass(frozen=True, slots=True)
class StoreSection:
    """The storage of journals and state. It has many attributes: those of two kinds of stores."""

    kind: Literal["cassandra", "embedded"] = setting(
        "cassandra", "cassandra for a cluster; embedded for one process alone, on its disk."
    )
    contact_points: tuple[str, ...] = setting(
        ("127.0.0.1:9042",),
        "Cassandra nodes that are asked first: host:port of each.",
        check=addresses,
        allowed=TAKES_ADDRESSES,
    )
    keyspace: str = setting("millwheel", "Keyspace; made where it is missing.", check=one_line)
    replication: str = setting(
        "1", "Replicas: a number, or one for each data centre (dc1=3,dc2=3). Counts when the keyspace is made."
    )
    write_consistency: Literal["quorum", "each_quorum", "all"] = setting(
        "quorum",
        "Replicas that must have a write before it counts: a quorum of all; a quorum in each data centre, so that "
        "one centre may be lost; or all. Reads are always at QUORUM, conditions at SERIAL.",
    )
    concurrent_writes: int = setting(
        16,
        "The most requests of one process at a time. Commits do not count, and never wait for others.",
        bounds=(1, 1_000),
    )
    direct_appends: bool = setting(
        True,
        "Send commits on connections of their own, one to each node of the data centre. This costs less than through "
        "Cassandra's driver. false: by the driver.",
    )
    state_buckets: int = setting(
        64,
        "Partitions that the states of a computation are spread over: about one for each 100 MB of the largest "
        "computation. Counts when the keyspace is made, and stays.",
        bounds=(1, 10_000),
    )
    local_dc: str = setting("", "The data centre that is asked; empty: that of the first contact point.")
    username: str = setting("", "Cassandra user, where Cassandra asks for one.")
    password: str = setting("", "The user's password.", secret=True)
    tls_ca: Path | None = setting(None, "PEM file of the authority that signed Cassandra's certificate; empty: no TLS.")
    tls_cert: Path | None = setting(None, "PEM file of the certificate that Cassandra is shown.")
    tls_key: Path | None = setting(None, "PEM file of that certificate's key.")
    timeout_seconds: float = setting(
        10.0,
        "The most seconds that one request may take.",
        bounds=(0.1, 600),
    )
    path: Path | None = setting(None, "Directory of the embedded store.")


@dataclass(frozen=True, slots=True)
class MasterSection:
    """A replica of the master."""

    lease_seconds: float = setting(
        3.0,
        "Seconds after which a standby leads when the leader has vanished.",
        bounds=(1, 600),
    )
    intervals_per_computation: int = setting(
        3,
        "Key intervals that a new computation begins with; balancing splits and merges them.",
        bounds=(1, 10_000),
    )
    balance: bool = setting(True, "Move, split and merge intervals by their load. false: only by command.")
    imbalance: float = setting(
        0.25,
        "Cores by which the loads of two worker processes may differ before intervals are moved.",
        bounds=(0.01, 1_000),
    )
    split_busy: float = setting(
        0.5,
        "Cores of work from which on an interval is split; neighbours far below it are merged.",
        bounds=(0.01, 1_000),
    )
    cool_down_seconds: float = setting(
        30.0,
        "Seconds for which balancing leaves an interval alone that was just moved, split or merged.",
        bounds=(0, 86_400),
    )
    balance_operations: int = setting(
        2,
        "The most moves, splits and merges that balancing has under way at a time.",
        bounds=(1, 1_000),
    )
    ui_port: int = setting(
        0, "Port of the web console, on the host of rpc.listen (docs/console.md); 0: no console.", bounds=(0, 65_535)
    )
    ui_read_only: bool = setting(True, "Refuse what changes something in the web console. false: it moves intervals.")
    snapshot_locations: tuple[str, ...] = setting(
        (),
        "Directories and URLs below which this master may write and read snapshots (docs/snapshots.md). Symbolic links "
        "are followed before the comparison. Empty: nowhere, so it takes and restores none.",
        check=locations,
        allowed=TAKES_LOCATIONS,
    )


@dataclass(frozen=True, slots=True)
class WorkerSection:
    """A worker daemon: one or more processes that own intervals."""

    id: str = setting(
        "", "Its name in the cluster, which no other worker daemon has; empty: the host's name and the port."
    )
    processes: int = setting(1, "Processes: about one for each core.", bounds=(1, 1_024))
    lease_seconds: float = setting(
        5.0,
        "Seconds after which the intervals of a process that has vanished go to others.",
        bounds=(1, 600),
    )
    drain_seconds: float = setting(
        20.0,
        "The most seconds that a process that stops takes to hand over its intervals.",
        bounds=(0, 3_600),
    )
    packages: Path | None = setting(
        Path("~/.cache/millwheel/packages"),
        "Directory for the code of topologies; only the daemon's user may write to it.",
    )
    cache_mib: int = setting(
        256,
        "MiB of memory for the cached states of each interval.",
        bounds=(1, 1 << 20),
    )
    check_values: bool = setting(
        True,
        "Decode each production and each changed state as its declared type, and fail the hook where that does not "
        "give an equal value. Without the check such a value is stored, and every later reader of it fails.",
    )
    columns: bool = setting(
        True,
        "Keep tumbling windows of counts, sums, means, least and greatest numbers by columns, from cluster.format 3 "
        "on; tables are taken by columns from cluster.format 4 on, with the extra 'arrow' at each worker "
        "(docs/computations.md).",
    )
    slow_hook_seconds: float = setting(
        1.0,
        "A hook that keeps the event loop so long is named in the log and counted; 0: never.",
        bounds=(0, 3_600),
    )


@dataclass(frozen=True, slots=True)
class AuthoritySection:
    """A candidate for the shards of the low watermark authority."""

    lease_seconds: float = setting(
        3.0,
        "Seconds after which another candidate serves the shards of a process that has vanished.",
        bounds=(1, 600),
    )


@dataclass(frozen=True, slots=True)
class RpcSection:
    """The address of a daemon, and TLS between daemons."""

    listen: str = setting(
        "",
        "host:port to listen on; port 0 takes a free one. Empty: loopback, port 7433 (master), 7434 (authority), "
        "7450 and on (worker processes).",
        check=optional_address,
        allowed=TAKES_ADDRESS,
    )
    advertise: str = setting(
        "",
        "The host (or host:port) by which others reach this daemon; empty: what it listens on.",
        allowed="a host, or host:port",
    )
    tls_cert: Path | None = setting(None, "PEM file of this daemon's certificate, shown to clients and to servers.")
    tls_key: Path | None = setting(None, "PEM file of that certificate's key.")
    tls_ca: Path | None = setting(None, "PEM file of the authority that signed everybody's certificates.")
    insecure: bool = setting(
        False, "Listen beyond loopback without TLS, too: everybody who reaches the port can do anything."
    )


@dataclass(frozen=True, slots=True)
class SecuritySection:
    """Who may do what (docs/security.md)."""

    policy: Path | None = setting(
        None,
        "TOML file with the roles of certificates and tokens. It is read again when it changes. Empty: certificates "
        "have the roles that they name themselves, if this daemon's does.",
    )


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """The metrics page for Prometheus."""

    listen: str = setting(
        "",
        'host:port of the metrics page; "off" for none. Empty: loopback, port 9433 (master), 9434 (authority), 9450 '
        "and on (worker processes).",
        check=_listen,
        allowed=f'{TAKES_ADDRESS}, or "off"',
    )


@dataclass(frozen=True, slots=True)
class OtlpSection:
    """Traces of sampled records, and metrics, for a collector of OpenTelemetry (docs/tracing.md)."""

    endpoint: str = setting(
        "",
        "The collector, by OTLP over gRPC: http://host:port, or https:// with TLS; empty: nothing is exported.",
        check=optional_url,
        allowed="http://host:port or https://host:port",
    )
    traces: bool = setting(True, "Export the spans of sampled records. Which records are sampled, injectors decide.")
    delay_seconds: float = setting(
        5.0, "Seconds for which spans are gathered. A process that is killed loses them.", bounds=(0.01, 600)
    )
    metrics_seconds: float = setting(
        0.0, "Seconds between two exports of the metrics that the metrics page shows; 0: none.", bounds=(0, 86_400)
    )


@dataclass(frozen=True, slots=True)
class LoggingSection:
    """A daemon's log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "The least level that is written.")
    format: Literal["text", "json"] = setting("text", "text for people; json: one object a line.")


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections."""

    cluster: ClusterSection = field(default_factory=ClusterSection)
    coordinator: CoordinatorSection = field(default_factory=CoordinatorSection)
    store: StoreSection = field(default_factory=StoreSection)
    master: MasterSection = field(default_factory=MasterSection)
    worker: WorkerSection = field(default_factory=WorkerSection)
    authority: AuthoritySection = field(default_factory=AuthoritySection)
    rpc: RpcSection = field(default_factory=RpcSection)
    security: SecuritySection = field(default_factory=SecuritySection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    otlp: OtlpSection = field(default_factory=OtlpSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
