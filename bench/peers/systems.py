"""All systems that are measured from topic to topic, and how some of them are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.peers.jobs import PROGRAMS, Bytewax, Flink, Peer
from bench.peers.jvm import ROCKSDB, KafkaStreams, Spark
from bench.peers.millwheel import Cluster, DevServer
from bench.peers.quix import Quix

__all__ = ["all_peers", "chosen"]


def all_peers(flink: Mapping[str, str], spark: Mapping[str, str]) -> list[Peer]:
    """All systems in the order of their turns.

    Args:
        flink: Settings of Flink, in place of those here.
        spark: The same for Spark.

    Returns:
        Each form of each system. Their names differ.
    """
    datastream = PROGRAMS / "flink_datastream.py"
    return [
        DevServer(),
        DevServer("millwheel-hook", "hooked"),
        Cluster(),
        Bytewax(),
        Bytewax(PROGRAMS / "bytewax_logic.py", "bytewax-logic"),
        Flink("flink-table", PROGRAMS / "flink_table.py", flink),
        Flink("flink-datastream", datastream, flink),
        Flink("flink-thread", datastream, flink, mode="thread"),
        Spark("spark-sql", PROGRAMS / "spark_sql.py", spark),
        Spark("spark-python", PROGRAMS / "spark_python.py", {**ROCKSDB, **spark}),
        KafkaStreams(),
        Quix(),
    ]


def chosen(only: str, peers: Sequence[Peer]) -> list[Peer]:
    """The systems whose names begin with one of these, which have commas between them. An empty text chooses all.

    Raises:
        ValueError: No system has such a name.
    """
    beginnings = [one.strip() for one in only.split(",")]
    for one in beginnings:
        if not any(peer.name.startswith(one) for peer in peers):
            raise ValueError(f"--only {one}: there is no such system, but {', '.join(peer.name for peer in peers)}")
    return [peer for peer in peers if peer.name.startswith(tuple(beginnings))]
