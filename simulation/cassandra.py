"""A simulated Cassandra behind the product's own :class:`~millwheel.store.cassandra.CassandraStore`.

What runs is the store's real code: its requests, its repetitions, what it remembers of heads. Simulated are the driver
(:mod:`simulation.cassandra_driver`) and the cluster, which acts on the text of each statement (:mod:`simulation.cql`).

The ways of a real cluster, and the invariant that each threatens:

- A transaction whose proposer got no answer is finished, or ended, by the next serial read or transaction of that
  partition, whoever makes it (G2: an entry is there exactly if the commit counter says so; G3: one writer).
- A request takes effect long after its sender was refused an answer, or has died (G3: of two owners the newest writes).
- A write that reached a minority is seen by one read and not by the next, and reaches all later (G2: a part is named
  only after it is acknowledged; G12: the floor passes an entry when its rows are acknowledged).
- Cells are decided by write times: of parts by the writers' wall clocks, of rows by commit numbers (G3, G12).
- Deletions arrive late, and cover what was written before or after them (G2).
- A flush is several requests, of which some arrive (G12).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from unittest.mock import patch

from cassandra import ConsistencyLevel, OperationTimedOut, WriteTimeout

from simulation.cassandra_driver import Bound, Driver, OwnedStore, SentBatch, opened
from simulation.cassandra_view import View
from simulation.cells import Mutation, Place, Tables, mutation_of
from simulation.cql import Statement, holds
from simulation.network import Network
from simulation.process import PROCESS
from simulation.remote import Remote
from simulation.store import StoreWatch

__all__ = ["SimulatedCassandra"]

_TUNED: Final = {
    "chunk": "parts.CHUNK_BYTES",
    "rows": "states._BATCH_ROWS",
    "writers": "states._WRITES_AT_ONCE",
    "entries": "journals._READ_AT_ONCE",
    "heads": "journals._MOST_OWN",
}
"""The store's bounds that no setting has, and where they are."""


@dataclass(slots=True)
class _Round:
    """A transaction that was proposed, and of which its sender has heard nothing. ``certain``: a majority has it."""

    who: str
    mutation: Mutation
    certain: bool


class SimulatedCassandra:
    """The cluster, and the stores of the processes that use it."""

    def __init__(self, network: Network, chance: Random, watch: StoreWatch, ways: dict[str, Any]) -> None:
        """``ways``: chances of ``unfinished`` transactions and ``partial`` writes, and bounds as in ``_TUNED``."""
        self.watch = watch
        self.remote = Remote(network, "store", chance, lambda text: OperationTimedOut({"store": text}), 2.0)
        self.reached = dict.fromkeys(("finished by another", "ended by another", "glimpsed", "late"), 0)
        """How often a way was taken that no single request takes."""
        self._network = network
        self._chance = chance
        self._ways = dict(ways)
        self._tables = Tables()
        self.inner = View(self._tables)
        """What a majority has, for those who look from outside."""
        self._rounds: dict[Place, _Round] = {}
        self._partial: dict[Place, list[Mutation]] = {}
        """Writes that a minority has."""
        self._ballot = 0

    def open(self) -> OwnedStore:
        """The store of the process whose step it is."""
        process = PROCESS.get()
        assert process is not None
        return opened(Driver(self, process), self, str(process))

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The store's code has the plan's bounds, and the simulated driver's batches."""
        with ExitStack() as stack:
            stack.enter_context(patch("millwheel.store.cassandra.states.BatchStatement", SentBatch))
            for name, place in _TUNED.items():
                if name in self._ways:
                    stack.enter_context(patch(f"millwheel.store.cassandra.{place}", self._ways[name]))
            yield

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._network.loop.now

    def calm(self) -> None:
        """Every request is acknowledged from now on."""
        self._ways.update(unfinished=0.0, partial=0.0)

    # A request.

    def serve(self, who: str, sent: Bound | SentBatch, stamp: int) -> list[tuple[Any, ...]]:
        """Act on what ``who`` sent, written at ``stamp`` if it names no time itself; an error of the driver's."""
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

    def _write(self, mutation: Mutation) -> list[tuple[Any, ...]]:
        """An unconditional write: it stands, or a minority has it, and all will some time."""
        if not self._happens("partial"):
            self._apply(mutation)
            return []
        self._partial.setdefault(mutation.place, []).append(mutation)
        delay = self._chance.choice((0.05, 1.0, self.remote.weather.latest)) * self._chance.random()
        self._network.loop.call_later(delay, self._spread, mutation, context=self._network.context)
        raise WriteTimeout("one of three replicas answered")

    def _spread(self, mutation: Mutation) -> None:
        """What a minority had reaches the others."""
        waiting = self._partial.get(mutation.place, [])
        if mutation in waiting:
            waiting.remove(mutation)
            self.reached["late"] += 1
            self._apply(mutation)

    def _glimpse(self, place: Place) -> None:
        """A read of a majority may meet the minority that has a write; then all have it."""
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
        if self._happens("unfinished"):
            self._rounds[mutation.place] = _Round(who, mutation, self._chance.random() < 0.5)
            raise WriteTimeout("the transaction was proposed, and its outcome is not known")
        self._decide(who, mutation)
        return [(True,)]

    def _finish_for(self, who: str) -> Any:
        return lambda place: self._finish(place, who)

    def _finish(self, place: Place, who: str) -> None:
        """Of a transaction that was left unfinished the next one finds out what a majority has, and completes that."""
        held = self._rounds.pop(place, None)
        if held is None:
            return
        stands = held.certain or self._chance.random() < 0.5
        if who != held.who:
            self.reached["finished by another" if stands else "ended by another"] += 1
        if stands:
            self._decide(held.who, held.mutation)

    def _decide(self, who: str, mutation: Mutation) -> None:
        change = self._apply(mutation)
        journal = mutation.place[1][0]
        if change.fenced is not None:
            self.watch.fenced(who, journal, change.fenced)
        if change.sealed:
            self.watch.sealed(who, journal)
        if change.append is not None:
            self.watch.appended(who, journal, change.append)

    def _apply(self, mutation: Mutation) -> Any:
        self._tables.partition(mutation.place).apply(mutation)
        return self.inner.follow(mutation)

    def _happens(self, way: str) -> bool:
        chance: float = self._ways.get(way, 0.0)
        return chance > 0.0 and self._chance.random() < chance


def _merged(mutations: Sequence[Mutation]) -> Mutation:
    """One mutation for all, which are of one partition."""
    whole = Mutation(mutations[0].place)
    for one in mutations:
        assert one.place == whole.place, "the product sends batches to one partition each"
        whole.cells += one.cells
        whole.deletions += one.deletions
    return whole
