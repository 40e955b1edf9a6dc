"""Real components that all tests of a run share. Each is started for the first test that uses it.

Each test has its own key prefix, keyspace or topics.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TypeVar

from deploy.local.apicurio import ApicurioRegistry
from deploy.local.cassandra import CassandraCluster
from deploy.local.etcd import EtcdCluster
from deploy.local.kafka import KafkaBroker
from deploy.local.mosquitto import MosquittoBroker
from deploy.local.postgres import PostgresServer
from deploy.local.redis import RedisServer
from millwheel.store.cassandra import CassandraSettings

SomeCluster = TypeVar("SomeCluster", EtcdCluster, CassandraCluster, KafkaBroker, ApicurioRegistry)


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="millwheel-components-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def etcd() -> EtcdCluster:
    """One member of etcd with its default limits."""
    return _started(EtcdCluster(_folder() / "etcd"))


@cache
def cassandra() -> CassandraCluster:
    """One node that asks for passwords. It starts in some ten seconds, which the first test has to wait for."""
    return _started(CassandraCluster(_folder() / "cassandra", authentication=True, quick_start=True))


@cache
def three_cassandra_nodes() -> CassandraCluster:
    """Three nodes, each with a replica."""
    return _started(CassandraCluster(_folder() / "cassandra3", 3, heap_mebibytes=512, quick_start=True))


@cache
def postgres() -> PostgresServer:
    """A server, of which each test has a database. A test may crash and restart it."""
    server = PostgresServer()
    atexit.register(server.remove)
    server.start()
    return server


@cache
def redis() -> RedisServer:
    """One server of Redis with an append-only file."""
    server = RedisServer(_folder() / "redis")
    atexit.register(server.process.stop)
    server.start()
    return server


@cache
def mosquitto() -> MosquittoBroker:
    """One broker of MQTT."""
    broker = MosquittoBroker(_folder() / "mosquitto", "max_queued_messages 0", "max_inflight_messages 0")
    atexit.register(broker.process.stop)
    broker.start()
    return broker


@cache
def kafka() -> KafkaBroker:
    """One broker, for topics of any name."""
    return _started(KafkaBroker(_folder() / "kafka"))


@cache
def schema_registry() -> ApicurioRegistry:
    """One schema registry, for subjects of any name. It starts in some five seconds."""
    return _started(ApicurioRegistry(_folder() / "apicurio"))


def cassandra_settings(cluster: CassandraCluster, keyspace: str) -> CassandraSettings:
    """Settings with as many replicas as nodes. There are few buckets, so that a scan takes few requests."""
    return CassandraSettings(
        contact_points=cluster.contact_points,
        keyspace=keyspace,
        replication=str(len(cluster.nodes)),
        username=cluster.username,
        password=cluster.password,
        state_buckets=4,
        timeout_seconds=20.0,
    )


def _started(cluster: SomeCluster) -> SomeCluster:
    atexit.register(cluster.stop)
    cluster.start()
    return cluster
