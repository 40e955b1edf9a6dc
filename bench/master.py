"""`python -m bench.master`: the master with 500,000 key intervals (section 7.1).

The master's core runs over a coordinator and a store in memory. Measured are the CPU time of the assignment of all
intervals to 100 workers, and of what follows the loss of one of them. The transactions are those that etcd would get:
their number and their bytes are counted.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from pathlib import Path
from time import process_time
from typing import Any, Final

from bench.report import Figure, print_figures, write_figures
from millwheel.coordination.contract import Compare, Put, TransactionResult
from millwheel.coordination.state import CoordinatorState
from millwheel.master import messages as m
from millwheel.master.core import MasterCore
from millwheel.master.settings import MasterSettings
from millwheel.model import catalog_keys as keys
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["main"]

_PER_COMPUTATION: Final = 5_000
_LOST: Final = "worker-000.1"


class Bench:
    """A leading master. Its effects are performed at once."""

    def __init__(self) -> None:
        self.state = CoordinatorState()
        self.transactions = self.puts = self.put_bytes = self.journals = 0
        self.transact((), (Put(keys.LEADERSHIP, b"bench"),), ())
        self.seen = self.state.revision
        self._drawn = 0
        self._requests = 0
        self.core = MasterCore(
            Compare(keys.LEADERSHIP, self.state.revision), MasterSettings(intervals_per_computation=_PER_COMPUTATION)
        )
        self._handle(m.SnapshotLoaded(self.state.list("")))

    def transact(
        self, compares: tuple[Compare, ...], puts: tuple[Put, ...], deletes: tuple[str, ...]
    ) -> TransactionResult:
        """Change the coordinator, and count what is written."""
        transition = self.state.decide(compares, puts, deletes, 0.0)
        if transition is not None:
            self.state.apply(transition)
            self.transactions += 1
            self.puts += len(puts)
            self.put_bytes += sum(len(put.key) + len(put.value) for put in puts)
        return TransactionResult(transition is not None, self.state.revision)

    def join(self, worker: str) -> None:
        """Register a worker."""
        record = catalog.WorkerRecord()
        record.endpoint.worker_id, record.endpoint.address = worker, "10.0.0.1:7000"
        self.transact((), (Put(keys.worker_key(worker), record.SerializeToString()),), ())
        self._follow()

    def lose(self, worker: str) -> None:
        """The worker's lease ends. Return when all of its intervals have other owners."""
        self.transact((), (), (keys.worker_key(worker),))
        self._follow()

    def submit(self, name: str) -> None:
        """Submit a topology with one computation."""
        spec = specs.TopologySpec(name=name)
        spec.code.digest, spec.code.entry_point = "ab" * 32, "app:topology"
        spec.streams.add(name=f"{name}/in", record_type="app.Event", format=specs.VALUE_FORMAT_MSGPACK, injected=True)
        computation = spec.computations.add(name="count", exactly_once=True, strong_productions=True)
        computation.inputs.add(stream=f"{name}/in", key=specs.KeySpec(fields=["key"]))
        self._requests += 1
        self._handle(m.RequestReceived(self._requests, m.SubmitTopology(spec, "bench")))
        self._follow()

    def owners(self) -> Counter[str]:
        """How many intervals each worker owns."""
        found: Counter[str] = Counter()
        for interval_map in self.core.catalog.maps.values():
            found.update(one.owner.worker_id for one in interval_map)
        return found

    def _follow(self) -> None:
        while newer := self.state.changes_after("", self.seen):
            for changes in newer:
                self.seen = changes[0].revision
                self._handle(m.RevisionArrived(changes))

    def _handle(self, event: m.MasterEvent) -> None:
        events = deque([event])
        while events:
            for effect in self.core.step(events.popleft(), 0):
                if (answer := self._perform(effect)) is not None:
                    events.append(answer)

    def _perform(self, effect: Any) -> m.MasterEvent | None:
        match effect:
            case m.ReserveNumbers(operation, above):
                self._drawn = max(self._drawn, above) + 1_000_000
                return m.NumbersReserved(operation, self._drawn - 1_000_000 + 1, self._drawn)
            case m.Reload(operation):
                return m.SnapshotLoaded(self.state.list(""), operation)
            case m.CreateJournals(operation, journals):
                self.journals += len(journals)
                return m.JournalsCreated(operation)
            case m.Transact(operation, compares, puts, deletes):
                return m.TransactionEnded(operation, self.transact(compares, puts, deletes))
            case m.Reply():
                return None
            case _:
                raise RuntimeError(f"the master asks for what this program does not expect: {effect!r:.300}")


def measure(intervals: int, workers: int) -> list[Figure]:
    """The figures of the assignment and of the loss of one worker. RuntimeError: an interval is without an owner."""
    bench = Bench()
    for number in range(workers):
        bench.join(f"worker-{number:03}.1")
    found: dict[str, tuple[float, str]] = {}
    found |= _counted(bench, "assign", lambda: _submit_all(bench, intervals // _PER_COMPUTATION))
    owned = bench.owners()
    entries = bench.state.list("").entries
    found["intervals"] = (sum(owned.values()), "intervals")
    found["workers"] = (workers, "workers")
    found["assign.most_of_a_worker"] = (max(owned.values()), "intervals")
    found["catalog_bytes"] = (sum(len(entry.key) + len(entry.value) for entry in entries), "bytes")
    lost = owned[_LOST]
    found |= _counted(bench, "lose", lambda: bench.lose(_LOST))
    after = bench.owners()
    if _LOST in after or "" in after or after.total() != owned.total():
        raise RuntimeError(f"of {owned.total()} intervals, {after[_LOST] + after['']} have no owner that is alive")
    found["lose.intervals"] = (lost, "intervals")
    found["lose.most_for_a_worker"] = (max((after - owned).values()), "intervals")
    return [Figure(f"master.{name}", value, unit, (value,)) for name, (value, unit) in sorted(found.items())]


def _submit_all(bench: Bench, topologies: int) -> None:
    for number in range(max(1, topologies)):
        bench.submit(f"topology-{number}")


def _counted(bench: Bench, name: str, run: Any) -> dict[str, tuple[float, str]]:
    before = bench.transactions, bench.puts, bench.put_bytes
    began = process_time()
    run()
    seconds = process_time() - began
    counts = (bench.transactions - before[0], bench.puts - before[1], bench.put_bytes - before[2])
    return {
        f"{name}.cpu_s": (seconds, "s"),
        f"{name}.transactions": (counts[0], "transactions"),
        f"{name}.puts": (counts[1], "writes"),
        f"{name}.put_bytes": (counts[2], "bytes"),
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.master", description=__doc__)
    parser.add_argument("--intervals", type=int, default=500_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="10,000 intervals, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench-master.json"))
    options = parser.parse_args()
    figures = measure(2 * _PER_COMPUTATION if options.quick else options.intervals, options.workers)
    print_figures(figures)
    write_figures(figures, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
