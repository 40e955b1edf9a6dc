"""The tables of the authority, of the master, and of the simulated workers. Pure."""

from __future__ import annotations

from bench.figures.cells import number, percentiles, table
from bench.readings import Readings

__all__ = ["authority_table", "master_table", "scale_table"]


def authority_table(found: Readings) -> str:
    """What one shard does with many intervals."""

    def value(name: str) -> str:
        return number(found.value(f"authority.{name}"))

    def latency(name: str) -> str:
        return " / ".join(percentiles(found, f"authority.{name}", ("p50", "p99"))) + " ms"

    taken = f"{value('takeover.opened_s')} / {value('takeover.first_broadcast_s')} s"
    full = f"the same beside {value('broadcast.full.beside_per_s')} reports/s of others, which would send 100,000"
    lines = [
        ("reports that the core takes, each with a new value, in any order: singly", f"{value('reports_per_s')}/s"),
        ("the same by columns, as workers send them", f"{value('columns_per_s')}/s"),
        ("reports that change nothing", f"{value('unchanged_per_s')}/s"),
        ("one round of all intervals over gRPC, from the first report to the last broadcast", f"{value('round_s')} s"),
        ("reports in this round", f"{value('served_reports_per_s')}/s"),
        ("the shard's CPU for a report in it", f"{value('served_report_us')} µs"),
        ("report to broadcast of one interval, the others at rest: p50 / p99", latency("broadcast.")),
        ("the same beside 10,000 reports/s of others", latency("broadcast.busy.")),
        (full, latency("broadcast.full.")),
        ("journal, for each report", f"{value('journal_bytes_per_report')} bytes"),
        ("base, for each interval", f"{value('base_bytes_per_interval')} bytes"),
        ("takeover by another shard: until it serves / until its first broadcast", taken),
    ]
    return table((f"the authority with {value('intervals')} intervals", ""), lines)


def master_table(found: Readings) -> str:
    """What the master writes for many intervals."""
    value = found.value

    def line(name: str, what: str) -> tuple[str, ...]:
        counts = (f"{value(f'master.{name}.{part}'):,.0f}" for part in ("transactions", "puts"))
        written = number(value(f"master.{name}.put_bytes") / 1e6)
        return what, f"{number(value(f'master.{name}.cpu_s'))} s", *counts, f"{written} MB"

    workers, lost = value("master.workers"), value("master.lose.intervals")
    title = f"the master with {value('master.intervals'):,.0f} intervals"
    lines = [
        line("assign", f"assign all to {workers:,.0f} workers"),
        line("lose", f"one worker is lost: its {lost:,.0f} intervals get other owners"),
    ]
    return table((title, "CPU", "transactions", "writes to etcd", "bytes"), lines)


def scale_table(found: Readings) -> str:
    """Simulated latencies by the number of workers."""
    lines = []
    for workers in (int(x) for x, _ in found.points("scale.strong.p50")):
        cells = [" / ".join(percentiles(found, f"scale.{form}.{workers}.")) for form in ("strong", "plain")]
        rate = number(found.value(f"scale.strong.{workers}.records_per_s"))
        took = number(found.value(f"scale.authority.{workers}.round_s"))
        lines.append((f"{workers:,}", rate, *cells, f"{took} s"))
    title = "guarantees on: p50 / p95 / p99, ms"
    return table(("workers (simulated)", "records/s", title, "both off", "one round of watermarks"), lines)
