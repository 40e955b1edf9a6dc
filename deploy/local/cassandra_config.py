"""The configuration of a local Cassandra node: its cassandra.yaml, its logging, and its JVM options."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["NodeConfig", "command", "write_files"]

CommitLogSync = Literal["batch", "periodic"]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one node.

    ``commitlog_sync``: ``batch`` acknowledges a write when it is on the disk, so a power cut or a SIGKILL loses no
    acknowledged write. ``periodic`` syncs every ten seconds: a power cut of all replicas loses the writes since then.
    ``quick_start`` turns the optimizing compiler off. The node is ready in two thirds of the time, but slower under
    load. ``broadcast``: the address that clients are given for this node, with the same port. Empty: the listen
    address. ``commitlog_mebibytes``: the size of the commit log above which the node flushes its tables, to free the
    log.
    """

    folder: Path
    address: str
    seeds: tuple[str, ...]
    storage_port: int
    native_port: int
    heap_mebibytes: int
    commitlog_sync: CommitLogSync
    authentication: bool
    quick_start: bool
    broadcast: str = ""
    commitlog_mebibytes: int = 512


def write_files(config: NodeConfig) -> None:
    """Write the node's configuration into its folder."""
    (config.folder / "tmp").mkdir(parents=True, exist_ok=True)
    # JSON is YAML.
    (config.folder / "cassandra.yaml").write_text(json.dumps(_yaml(config), indent=2))
    (config.folder / "logback.xml").write_text(_LOGBACK)


def command(config: NodeConfig, java: Path, jars: Path) -> list[str]:
    """The command that starts the node."""
    heap = f"{config.heap_mebibytes}m"
    properties = {
        "cassandra.config": (config.folder / "cassandra.yaml").as_uri(),
        "logback.configurationFile": (config.folder / "logback.xml").as_uri(),
        "cassandra.storagedir": str(config.folder),
        "cassandra-foreground": "yes",
        # A cluster of machines needs these waits. A cluster on loopback does not.
        "cassandra.ring_delay_ms": "0",
        "cassandra.skip_wait_for_gossip_to_settle": "0",
        "cassandra.superuser_setup_delay_ms": "0",
        "java.awt.headless": "true",
        "java.net.preferIPv4Stack": "true",
        "java.io.tmpdir": str(config.folder / "tmp"),
        "jdk.attach.allowAttachSelf": "true",
    }
    if config.authentication:
        # 16 rounds of hashing, and not 1,024: each connection computes them, and these passwords protect nothing.
        properties["cassandra.auth_bcrypt_gensalt_log2_rounds"] = "4"
    # The serial collector costs the least on few cores with a small heap.
    options = [f"-Xms{heap}", f"-Xmx{heap}", "-Xss256k", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
    options += ["-XX:+ExitOnOutOfMemoryError", f"-XX:ErrorFile={config.folder}/hs_err.log"]
    if config.quick_start:
        options.append("-XX:TieredStopAtLevel=1")
    for module in _OPEN_MODULES:
        options += [f"--add-opens={module}=ALL-UNNAMED", f"--add-exports={module}=ALL-UNNAMED"]
    (agent,) = jars.glob("jamm-*.jar")
    options.append(f"-javaagent:{agent}")
    options += [f"-D{name}={value}" for name, value in properties.items()]
    return [str(java), *options, "-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"]


def _yaml(config: NodeConfig) -> dict[str, object]:
    seeds = ",".join(f"{seed}:{config.storage_port}" for seed in config.seeds)
    yaml: dict[str, object] = {
        "cluster_name": "millwheel",
        "num_tokens": 4,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [
            {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": seeds}]}
        ],
        "listen_address": config.address,
        "rpc_address": config.address,
        "storage_port": config.storage_port,
        "native_transport_port": config.native_port,
        "paxos_variant": "v2",
        "auto_snapshot": False,
        "commitlog_sync": config.commitlog_sync,
        "commitlog_segment_size": "32MiB",
        "memtable_heap_space": f"{config.heap_mebibytes // 4}MiB",
        "memtable_offheap_space": f"{config.heap_mebibytes // 4}MiB",
        "commitlog_total_space": f"{config.commitlog_mebibytes}MiB",
    }
    if config.broadcast:
        yaml["broadcast_rpc_address"] = config.broadcast
    if config.commitlog_sync == "periodic":
        yaml["commitlog_sync_period"] = "10s"
    for name in ("commitlog", "saved_caches", "hints", "cdc_raw"):
        yaml[f"{name}_directory"] = str(config.folder / name)
    yaml["data_file_directories"] = [str(config.folder / "data")]
    if config.authentication:
        yaml["authenticator"] = "PasswordAuthenticator"
        yaml["authorizer"] = "CassandraAuthorizer"
        # Short cache times, so that changed permissions apply at once.
        yaml |= {f"{what}_validity": "100ms" for what in ("permissions", "roles", "credentials")}
    return yaml


_LOGBACK: Final = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%-5level %date{ISO8601} %logger{20} %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root></configuration>
"""

_OPEN_MODULES: Final = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.management.jfr/jdk.management.jfr",
    "jdk.management/com.sun.management.internal",
)
