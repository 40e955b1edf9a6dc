"""`python -m bench.filtered`: filters before windows by columns, on the columns of tables, in CPU time.

An interval core in this process counts by key and second what a filter passes. It gets tables, as an injector sends
them. The store is memory, and nothing goes over a network.
"""

from __future__ import annotations

import argparse
import gc
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

import millwheel as mw
from bench.report import Figure, print_figures, write_figures
from millwheel import agg, windows
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.topology import TopologyGraph
from millwheel.testing.cluster import VirtualCluster
from millwheel.testing.cores import HOOK_TIMEOUT_SECONDS
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import Acknowledged, Delivery, SendDelivery

__all__ = ["PROGRAMS", "SECOND", "Bid", "TablesByWindows", "measure", "report", "spent_in_turns", "tables_of"]

BEGIN: Final = 1_700_000_000_000_000
SECOND: Final = mw.seconds(1)
_KEYS: Final = 10_000
_PRICES: Final = 1_000


class Bid(msgspec.Struct):
    """About 90 bytes in MessagePack."""

    auction: str
    price: int
    weight: float
    note: str


Before = Callable[[mw.Stream[Bid]], mw.Stream[Bid]]
_HALF: Final = _PRICES // 2
PROGRAMS: Final[dict[str, Before]] = {
    "no filter": lambda bids: bids,
    "by a function": lambda bids: bids.filter(lambda bid: bid.price < _HALF),
    "by an expression": lambda bids: bids.filter(mw.col("price") < _HALF),
    "by two expressions": lambda bids: bids.filter(mw.col("price") < _HALF).filter(mw.col("note") != "none"),
    "by a rare one": lambda bids: bids.filter(mw.col("price") < _PRICES // 100),
}
"""What is before the windows. Half of the records pass, and of the last one a hundredth."""


class TablesByWindows(VirtualCluster):
    """A program whose windows "out" get tables of bids."""

    def __init__(self, topology: TopologyGraph) -> None:
        super().__init__(BEGIN, (), IntervalSettings(columns_from=16), HOOK_TIMEOUT_SECONDS)
        self.load(topology)
        self.restart()
        self._position = 1
        self.kept: list[Delivery] = []
        """What went to logs."""

    def send_batch(self, journal: str, one: SendDelivery) -> None:
        """Deliver results to another computation, if there is one, and keep those for a log."""
        if one.delivery.consumer in self.incarnations.values():
            super().send_batch(journal, one)
            return
        self.kept.append(one.delivery)
        self.driver.post(journal, Acknowledged(one.delivery.token))

    def counted(self) -> int:
        """How many records the results have counted."""
        return sum(msgspec.msgpack.decode(value)["n"] for one in self.kept for value in one.values)

    def play(self, records: RecordColumns | None, until: int) -> None:
        """Deliver a table. No record before ``until`` follows."""
        if records is not None:
            incarnation = self.incarnations["out"]
            journal, first = self.locate(incarnation, b""), self._position
            watermark = self.watermarks[injector_group("bids")]
            delivery = self.injected.open(incarnation, journal, "bids", first, watermark, opaque=False)
            delivery.keys, delivery.values, delivery.timestamps = records.keys(), records, records.timestamps
            ids: Any = delivery.ids
            self._position += len(records)
            delivery.ids = replace(ids, positions=range(first, self._position), complete=True)
            self.driver.post(journal, self.injected.keep(delivery))
            self.run()
        self.declared["bids"] = until
        self.publish("bids")
        self.run()


def tables_of(records: int, rows: int) -> list[RecordColumns]:
    """Bids of 10,000 auctions in four seconds, in tables of so many rows."""
    import pyarrow as pa

    random, tables = Random(7), list[RecordColumns]()
    for first in range(0, records, rows):
        count = min(rows, records - first)
        columns = {
            "auction": [f"auction {random.randrange(_KEYS)}" for _ in range(count)],
            "price": [random.randrange(_PRICES) for _ in range(count)],
            "weight": [random.random() for _ in range(count)],
            "note": ["a note of some length" for _ in range(count)],
        }
        stamps = array("q", (BEGIN + 4 * (first + one) * SECOND // records for one in range(count)))
        tables.append(RecordColumns(pa.record_batch(columns), stamps, "auction"))
    return tables


def spent_in_turns(
    clusters: Mapping[str, TablesByWindows], tables: Sequence[RecordColumns], run: int
) -> dict[str, float]:
    """The processor time of each program, in seconds. All get the same tables, in turns, and then the end of time.

    Args:
        clusters: The programs, by name.
        tables: What they get.
        run: The number of the run: who begins changes with it, and with each table.
    """
    spent = dict.fromkeys(clusters, 0.0)
    gc.collect()
    for number, table in enumerate([*tables, None]):
        until = int(MAX_TIMESTAMP) if table is None else table.timestamps[0]
        for name in [*clusters][:: 1 if (run + number) % 2 else -1]:
            given = None if table is None else RecordColumns(table.batch, table.timestamps, table.key)
            began = time.process_time()
            clusters[name].play(given, until)
            spent[name] += time.process_time() - began
    return spent


def measure(records: int, rows: int, runs: int) -> dict[str, list[float]]:
    """Microseconds a record of each program, for each run. All get the same tables, in turns.

    Args:
        records: How many records.
        rows: How many of them a table has.
        runs: How often.
    """
    tables = tables_of(records, rows)
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for run in range(runs):
        clusters = {name: TablesByWindows(_topology(before)) for name, before in PROGRAMS.items()}
        spent = spent_in_turns(clusters, tables, run)
        if clusters["by a function"].counted() != clusters["by an expression"].counted():
            raise RuntimeError("the programs have counted other records")
        for name, cluster in clusters.items():
            found[name].append(spent[name] / records * 1e6)
            cluster.driver.close()
    return found


def _topology(before: Before) -> mw.Topology:
    topology = mw.Topology("filtered")
    passed = before(topology.source("bids", Bid))
    passed.key_by("auction").window(windows.tumbling(SECOND)).aggregate("out", n=agg.count())
    return topology


def report(name: str, measure: Callable[[int, int, int], dict[str, list[float]]], records: int) -> None:
    """Measure as the command line says, print and write the figures.

    Args:
        name: The module's.
        measure: Gets how many records there are, how many rows a table has, and how often. Returns microseconds.
        records: How many there are by default.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=measure.__doc__)
    parser.add_argument("--records", type=int, default=records, help="records of each program")
    parser.add_argument("--rows", type=int, default=8_192, help="rows of a table")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(f"build/bench-{name}.json"))
    arguments = parser.parse_args()
    found = measure(arguments.records, arguments.rows, arguments.runs)
    figures = [Figure(f"{name}.{one}", min(each), "µs", tuple(each)) for one, each in found.items()]
    print_figures(figures)
    write_figures(figures, arguments.out)


if __name__ == "__main__":
    report("filtered", measure, 160_000)
