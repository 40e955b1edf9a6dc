"""The tables of docs/performance.md, made from the figures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bench.figures.cells import number, percentiles, runs_of, table
from bench.figures.measured import Kept
from bench.figures.nexmark_table import nexmark_table
from bench.figures.role_tables import authority_table, master_table, scale_table
from bench.readings import Readings

__all__ = ["tables"]

_FORMS: Final = (
    ("keyed_count.columns.tables", "windows, from tables of Arrow"),
    ("keyed_count.columns.tables.sum", "windowed sum of a field, from tables of Arrow"),
    ("keyed_count.columns.tables.million", "windows, from tables, 1,000,000 keys and windows of a minute"),
    ("keyed_count.columns.tables.zipf", "windows, from tables, keys by Zipf's law with exponent 1.2"),
    ("keyed_count.columns.tables.small", "windows, from tables of 100 rows"),
    ("keyed_count.columns.exactly_once", "windows by columns, records sent one by one"),
    ("keyed_count.window.exactly_once", "windows as hooks"),
    ("keyed_count.exactly_once", "a hook by hand"),
    ("keyed_count.batch.tables", "a hook by hand for many records, from tables of Arrow"),
    ("keyed_count.batch.exactly_once", "a hook by hand for many records, sent one by one"),
    ("keyed_count.window.plain", "windows as hooks, exactly-once and strong productions off"),
    ("keyed_count.plain", "a hook by hand, both off"),
)
_HANDS: Final = (("interval_move", "a move"), ("interval_split", "a split"), ("interval_merge", "a merge"))
_CASES: Final = (
    ("keys.100", "100 keys, 100 bytes, one consumer"),
    ("keys.10000", "10,000 keys"),
    ("keys.1000000", "1,000,000 keys"),
    ("keys.10000000", "10,000,000 keys"),
    ("zipf.1.2", "10,000 keys by Zipf's law, exponent 1.2"),
    ("value.10", "payloads of 10 bytes"),
    ("value.1000", "payloads of 1,000 bytes"),
    ("value.10000", "payloads of 10,000 bytes"),
    ("value.100000", "payloads of 100,000 bytes"),
    ("consumers.10", "10 consumers of the stream, 1,000 keys"),
    ("consumers.100", "100 consumers of the stream, 1,000 keys"),
)
_PEERS: Final = (
    ("millwheel-dev", "MillWheel, one process"),
    ("millwheel-hook", "MillWheel, one process, a hook by hand"),
    ("millwheel-cluster", "MillWheel, a cluster on Cassandra and etcd"),
    ("bytewax", "Bytewax"),
    ("bytewax-logic", "Bytewax, a logic by hand"),
    ("flink-table", "Flink, SQL (no Python for a record)"),
    ("flink-datastream", "PyFlink, DataStream, Python in processes"),
    ("flink-thread", "PyFlink, DataStream, Python in threads of the JVM"),
    ("spark-sql", "Spark, SQL (no Python for a record)"),
    ("spark-python", "Spark, a stateful processor in Python"),
    ("kafka-streams", "Kafka Streams (Java)"),
    ("quix", "Quix Streams"),
)


def tables(kept: Mapping[str, Kept]) -> dict[str, str]:
    """All tables that can be made of what was measured, by name."""
    found = {name: one.readings(name) for name, one in kept.items()}
    made = {name: make(found[part]) for name, (part, make) in _TABLES.items() if part in found}
    return {**made, "origins": _origins(kept)}


def _count(found: Readings) -> str:
    lines = [
        (what, f"**{number(found.value(name))}**", runs_of(found, name))
        for name, what in _FORMS
        if name in found.figures
    ]
    return table(("windowed count by key", "records/s", "all runs"), lines)


def _cluster_count(found: Readings) -> str:
    forms = (
        ("cluster.keyed_count.columns", "windows by columns, from tables of Arrow"),
        ("group_commit.records_per_s", "a hook by hand"),
    )
    lines = [(what, f"**{number(found.value(name))}**") for name, what in forms if name in found.figures]
    return table(("the same count in a cluster, with its store on the same cores", "records/s"), lines)


def _latency(found: Readings) -> str:
    lines = [(f"{rate:,} records/s", *percentiles(found, f"latency.{rate}.")) for rate in (200, 2_000)]
    return table(("two stages on one machine", "p50, ms", "p95, ms", "p99, ms"), lines)


def _stage(found: Readings) -> str:
    papers = {"plain": ("3.6", "30"), "strong": ("33.7", "93.8")}
    lines = []
    for form, what in (("plain", "both off"), ("strong", "exactly-once and strong productions")):
        delivery = percentiles(found, f"stage_latency.{form}.delivery.")
        whole = " / ".join(percentiles(found, f"stage_latency.{form}.", ("p50", "p95")))
        lines.append((what, *delivery, whole, " / ".join(papers[form])))
    heads = (
        "one stage, 500 records/s",
        "p50, ms",
        "p95, ms",
        "p99, ms",
        "with the result, p50 / p95",
        "the paper, p50 / p95",
    )
    return table(heads, lines)


def _lag(found: Readings) -> str:
    lines = [
        (what, number(found.value(f"watermark_lag.{name}.p50_ms")), paper)
        for name, what, paper in (
            ("injector", "injector", "–"),
            ("one", "first stage", "1,795"),
            ("two", "second stage", "1,954"),
            ("three", "third stage", "2,081"),
        )
    ]
    return table(("low watermark of", "median lag, ms", "the paper, mean, ms"), lines)


def _changes(found: Readings) -> str:
    lines: list[tuple[str, ...]] = []
    if "takeover.first_record_ms" in found.figures:
        owner, first = found.value("takeover.new_owner_ms"), found.value("takeover.first_record_ms")
        lines.append(("a killed worker: until its interval has another owner (the lease)", number(owner), "–"))
        lines.append(("then, until the first record is ACKed, with 100,000 timers", number(first), "–"))
    for name, what in _HANDS:
        if f"{name}.unavailable_p50_ms" in found.figures:
            values = (number(found.value(f"{name}.unavailable_{part}_ms")) for part in ("p50", "max"))
            lines.append((f"{what} of an interval under load: gap between answers", *values))
    return table(("what changes hands", "median, ms", "most, ms"), lines)


def _cores(found: Readings) -> str:
    kinds = ("worker", "Cassandra", "authority", "etcd", "master", "client", "others", "idle")
    names = [name for name in ("stage_latency.strong", "stage_latency.plain") if f"{name}.cores.idle" in found.figures]
    lines = [
        (name.rpartition(".")[2], *(f"{found.value(f'{name}.cores.{kind}'):.2f}" for kind in kinds)) for name in names
    ]
    return table(("cores used at 500 records/s", *kinds), lines)


def _cache(found: Readings) -> str:
    lines = []
    for place, (size, cpu) in enumerate(found.points("cache.watermark.cpu_us")):
        other = found.points("cache.lru.cpu_us")[place][1]
        share = f"{size / found.value('cache.needed_mb'):g}"
        share = next(one for one in _shares(found) if abs(float(one) - float(share)) < 0.001)
        reads = [f"{found.value(f'cache.{policy}.{share}.reads'):.2f}" for policy in ("watermark", "lru")]
        lines.append((f"{float(share):.0%}", number(cpu), number(other), f"{1 - cpu / other:.0%}", *reads))
    heads = (
        "cache, of what all keys need",
        "CPU by watermark, µs",
        "CPU by LRU, µs",
        "less",
        "rows read a record, by watermark",
        "by LRU",
    )
    return table(heads, lines)


def _shares(found: Readings) -> list[str]:
    names = (name.split(".", 2)[2] for name in found.figures if name.startswith("cache.watermark."))
    return [name.removesuffix(".reads") for name in names if name.endswith(".reads")]


def _sizes(found: Readings) -> str:
    lines = []
    for name, what in _CASES:
        if f"sizes.{name}.cpu_us" in found.figures:
            values = (number(found.value(f"sizes.{name}.{part}")) for part in ("records_per_s", "mb_per_s", "cpu_us"))
            lines.append((what, *values))
    return table(("a hook that counts", "records/s", "payload, MB/s", "server's CPU, µs a record"), lines)


def _peers(found: Readings) -> str:
    lines = []
    for name, what in _PEERS:
        prefix = f"peers.{name}."
        if f"{prefix}records_per_s" in found.figures:
            values = (
                number(found.value(prefix + part)) for part in ("records_per_s", "first_result_s", "cpu_us", "peak_mb")
            )
            rate, first, cpu, memory = values
            lines.append(
                (what, rate, runs_of(found, f"{prefix}records_per_s"), f"{first} s", f"{cpu} µs", f"{memory} MB")
            )
    return table(("from topic to topic", "records/s", "all runs", "first result", "CPU a record", "memory"), lines)


def _spark(found: Readings) -> str:
    first, floor, noop = (found.value(f"spark.first{name}_s") for name in ("", "_python_noop", "_noop"))
    lines = [
        ("the first batch of a session, 1,000 rows, after `start_python`", f"**{first:.1f} s**"),
        ("the same into a Python sink that does nothing, without the call", f"{floor:.1f} s"),
        ("the same into Spark's sink that does nothing and starts no Python", f"{noop:.1f} s"),
        ("MillWheel's, beside Spark's sink that does nothing", f"{first - noop:+.1f} s"),
        ("later batch writes of 1,000,000 rows", f"**{number(found.value('spark.rows_per_s'))} rows/s**"),
    ]
    return table(("a keyed count, fed by Spark", "time, or rate"), lines)


def _origins(kept: Mapping[str, Kept]) -> str:
    lines = []
    for name, one in kept.items():
        origin, found = one.origin, one.readings(name)
        core = {0.0: "pure Python"}.get(found.figures.get("build.compiled_modules", 0.0), "compiled")
        lines.append(
            (
                name,
                origin.date,
                f"`{origin.commit}`",
                origin.processor,
                origin.python,
                core,
                f"{origin.load}",
                origin.note,
            )
        )
    heads = ("part", "date", "commit", "machine", "Python", "interval core", "load before", "note")
    return table(heads, lines)


_TABLES: Final[Mapping[str, tuple[str, Callable[[Readings], str]]]] = {
    "count": ("count", _count),
    "spark": ("spark", _spark),
    "cluster-count": ("cluster", _cluster_count),
    "latency": ("latency", _latency),
    "stage": ("cluster", _stage),
    "lag": ("cluster", _lag),
    "changes": ("cluster", _changes),
    "cores": ("cluster", _cores),
    "authority": ("authority", authority_table),
    "master": ("master", master_table),
    "scale": ("scale", scale_table),
    "cache": ("cache", _cache),
    "sizes": ("sizes", _sizes),
    "peers": ("peers", _peers),
    "nexmark": ("nexmark", nexmark_table),
}
"""By name: the part whose figures it shows, and what makes it."""
