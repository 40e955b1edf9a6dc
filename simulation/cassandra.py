"""A simulated Cassandra behind the product's own :class:`~millwheel.store.cassandra.CassandraStore`.

The store's real code runs: its requests, its retries, its cache of heads. The driver
(:mod:`simulation.cassandra_driver`) and the cluster are simulated. The cluster executes the text of each statement
(:mod:`simulation.cql`).

The behaviours of a real cluster, and the invariants that each could break:

- A transaction whose proposer got no answer stays unfinished. The next serial read or transaction of that partition,
  from any client, completes or aborts it (G2: an entry exists exactly if the commit counter says so; G3: one writer).
- A request takes effect long after its sender got an error or died (G3: only the newest owner writes).
- A write that reached a minority is visible to one read and not to the next, and reaches all replicas later (G2: a part
  is named only after it is acknowledged; G12: the truncation point passes an entry when its rows are acknowledged).
- Write times decide cells: parts use the writers' wall clocks, rows use commit numbers (G3, G12).
- Deletions arrive late, and cover what was written before or after them (G2).
- A flush is several requests, and only some of them may arrive (G12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from unittest.mock import patch

from cassandra import ConsistencyLevel, OperationTimedOut, WriteTimeout

from simulation.cassandra_driver import Bound, Driver, OwnedStore, SentBatch, opened
from simulation.cassandra_view import View
from simulation.cells import CellMutation, CellTables, Place, mutation_of
from simulation.cql import Statement, holds
from simulation.network import Network
from simulation.process import PROCESS
from simulation.remote import Remote
from simulation.store import StoreWatch

__all__ = ["SimulatedCassandra"]

_TUNED: Final = {
    "chunk": "store.cassandra.parts.CHUNK_BYTES",
    "rows": "store.cassandra.states.BATCH_ROWS",
    "writers": "store.cassandra.states.MAX_CONCURRENT_WRITES",
    "entries": "store.cassandra.journals.MAX_CONCURRENT_READS",
    "heads": "store.cassandra.journals.MAX_KEPT_HEADS",
    "deflate": "model.envelope.DEFLATE_FROM",
    "piece": "model.envelope.PIECE_BYTES",
}
"""The store's bounds that have no setting, and the constants that hold them."""


@dataclass(slots=True)
class _Round:
    """A proposed transaction whose sender has no answer. ``certain``: a majority has it."""

    who: str
    mutation: CellMutation
    certain: bool


class SimulatedCassandra:
    """The cluster, and the stores of the processes that use it."""

    def __init__(self, network: Network, chance: Random, watch: StoreWatch, ways: dict[str, Any]) -> None:
        """Start an empty cluster.

        ``ways``: the probabilities of ``unfinished`` transactions and ``partial`` writes, and bounds as in ``_TUNED``.
        """
        self.watch = watch
        self.remote = Remote(network, "store", chance, lambda text: OperationTimedOut({"store": text}), 2.0)
        self.reached = dict.fromkeys(("finished by another", "ended by another", "glimpsed", "late"), 0)
        """How often a behaviour occurred that one request alone cannot show."""
        self.proposer_dies: Callable[[str], None] | None = None
        """If set, the next transaction stays unfinished, and this is called with the process that sent it."""
        self._network = network
        self._chance = chance
        self.ways = dict(ways)
        self._tables = CellTables()
        self.inner = View(self._tables)
        """The data of a majority, for checkers."""
        self._rounds: dict[Place, _Round] = {}
        self._partial: dict[Place, list[CellMutation]] = {}
        """Writes that only a minority has."""
        self._ballot = 0

    def open(self) -> OwnedStore:
        """The store for the process whose step is running."""
        process = PROCESS.get()
        assert process is not None
        return opened(Driver(self, process), self, str(process))

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The store's code uses the plan's bounds and the simulated driver's batches."""
        with ExitStack() as stack:
            stack.enter_context(patch("millwheel.store.cassandra.states.BatchStatement", SentBatch))
            for name, place in _TUNED.items():
                if name in self.ways:
                    stack.enter_context(patch(f"millwheel.{place}", self.ways[name]))
            yield

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._network.loop.now

    def calm(self) -> None:
        """From now on, acknowledge every request."""
        self.ways.update(unfinished=0.0, partial=0.0)
        self.proposer_dies = None

    # A request.

    def serve(self, who: str, sent: Bound | SentBatch, stamp: int) -> list[tuple[Any, ...]]:
        """Execute what ``who`` sent; raises an error of the driver.

        The write time is ``stamp``, unless the statement has its own.
        """
        if isinstance(sent, SentBatch):
            mutations = [mutation_of(one.prepared.statements[0], one.values, stamp) for one in sent.bound]
            return self._write(_merged(mutations))
        statements, values = sent.prepared.statements, sent.values
        if statements[0].kind == "select":
            serial = sent.prepared.consistency_level == ConsistencyLevel.SERIAL
            return self._tables.select(statements[0], values, self._finish_for(who) if serial else self._glimpse)
        if any(one.guard for one in statements):
            return self._transact(who, statements, values)
        return self._write(_merged([mutation_of(one, values, stamp) for one in statements]))

    def _write(self, mutation: CellMutation) -> list[tuple[Any, ...]]:
        """Apply an unconditional write, or give it to a minority first and to all replicas later."""
        if not self._happens("partial"):
            self._apply(mutation)
            return []
        self._partial.setdefault(mutation.place, []).append(mutation)
        delay = self._chance.choice((0.05, 1.0, self.remote.weather.latest)) * self._chance.random()
        self._network.loop.call_later(delay, self._spread, mutation, context=self._network.context)
        raise WriteTimeout("one of three replicas answered")

    def _spread(self, mutation: CellMutation) -> None:
        """A minority's write reaches the other replicas."""
        waiting = self._partial.get(mutation.place, [])
        if mutation in waiting:
            waiting.remove(mutation)
            self.reached["late"] += 1
            self._apply(mutation)

    def _glimpse(self, place: Place) -> None:
        """A majority read may include the minority that has a write. If it does, the write reaches all replicas."""
        waiting = self._partial.get(place, [])
        for mutation in list(waiting):
            if self._chance.random() < 0.5:
                waiting.remove(mutation)
                self.reached["glimpsed"] += 1
                self._apply(mutation)
        held = self._rounds.get(place)
        if held is not None and held.certain and self._chance.random() < 0.5:
            self._finish(place, "")

    # Transactions.

    def _transact(self, who: str, statements: Sequence[Statement], values: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._ballot = max(self._ballot + 1, int(self._network.loop.now * 1e6))
        mutation = _merged([mutation_of(one, values, self._ballot) for one in statements])
        self._finish(mutation.place, who)
        partition = self._tables.partition(mutation.place)
        for one in statements:
            if one.guard == "exists":
                held = any(value is not None for _, value in partition.static.values())
            elif one.guard == "not exists":
                held = not any(row is not None and partition.live(row) for row, *_ in mutation.cells)
            else:
                pairs = [(partition.value(part.column), part) for part in one.conditions]
                held = all(holds(part.operator, value, part.term.of(values)) for value, part in pairs)
            if not held:
                return [(False, *(partition.value(part.column) for part in one.conditions))]
        dies, self.proposer_dies = self.proposer_dies, None
        if dies is not None:
            dies(who)
        if dies is not None or self._happens("unfinished"):
            self._rounds[mutation.place] = _Round(who, mutation, self._chance.random() < 0.5)
            raise WriteTimeout("the transaction was proposed, and its outcome is not known")
        self._decide(who, mutation)
        return [(True,)]

    def _finish_for(self, who: str) -> Any:
        return lambda place: self._finish(place, who)

    def _finish(self, place: Place, who: str) -> None:
        """Complete or abort a partition's unfinished transaction, depending on what a majority has."""
        held = self._rounds.pop(place, None)
        if held is None:
            return
        stands = held.certain or self._chance.random() < 0.5
        if who != held.who:
            self.reached["finished by another" if stands else "ended by another"] += 1
        if stands:
            self._decide(held.who, held.mutation)

    def _decide(self, who: str, mutation: CellMutation) -> None:
        change = self._apply(mutation)
        journal = mutation.place[1][0]
        if change.fenced is not None:
            self.watch.fenced(who, journal, change.fenced)
        if change.sealed:
            self.watch.sealed(who, journal)
        if change.append is not None:
            self.watch.appended(who, journal, change.append)

    def _apply(self, mutation: CellMutation) -> Any:
        self._tables.partition(mutation.place).apply(mutation)
        return self.inner.follow(mutation)

    def _happens(self, way: str) -> bool:
        chance: float = self.ways.get(way, 0.0)
        return chance > 0.0 and self._chance.random() < chance


def _merged(mutations: Sequence[CellMutation]) -> CellMutation:
    """One mutation with the changes of all; they belong to one partition."""
    whole = CellMutation(mutations[0].place)
    for one in mutations:
        assert one.place == whole.place, "the product sends batches to one partition each"
        whole.cells += one.cells
        whole.deletions += one.deletions
    return whole
