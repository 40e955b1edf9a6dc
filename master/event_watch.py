"""Events that no change by the master explains: workers that come and go, lost leases, hooks that fail. Pure.

It compares what is now with what was at the look before. The events in the log are the memory of earlier leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from millwheel.master.leader_changes import INTERRUPTED, interruption_text
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster

__all__ = ["JOINED", "LEFT", "LOST", "EventWatch"]

MAX_LEFT: Final = 1_000
"""Workers that have left are remembered, so many at most. In some clusters each start of a worker has another name."""
_ACTOR = "master"
_NEXT = "; next attempt"
_FAILING, _RECOVERED = "hooks.failing", "hooks.recovered"
JOINED, LEFT, LOST = "worker.joined", "worker.left", "worker.lost"

_NO_MASTERS: Final[Mapping[str, catalog.MasterRecord]] = MappingProxyType({})
_NONE_LEFT: Final[Mapping[str, catalog.WorkerRecord]] = MappingProxyType({})


class EventWatch:
    """What a leader has seen so far. Invariant: of one worker or computation, the two kinds of events alternate."""

    def __init__(self, kept: Mapping[int, bytes]) -> None:
        """``kept``: the events in the log, encoded, by number."""
        self._workers: dict[str, int] = {}
        """When each registered worker was started. 0: before this leader's term, by the log."""
        self.left: dict[str, str] = {}
        """The workers that were stopped in order and are not back, by name, each with its address."""
        self._failing: set[tuple[str, str]] = set()
        self._interruptions: set[str] = set()
        """The texts of masters' lost leases, which have their times."""
        self._began = False
        for _, value in sorted(kept.items()):
            self._remember(value)

    def _remember(self, value: bytes) -> None:
        try:
            event = catalog.EventRecord.FromString(value)
        except ValueError:
            return
        place = event.topology, event.subject
        if event.kind == _FAILING:
            self._failing.add(place)
        elif event.kind == _RECOVERED:
            self._failing.discard(place)
        elif event.kind == INTERRUPTED:
            self._interruptions.add(event.text)
        elif event.kind == JOINED:
            self._workers[event.subject] = 0
            self.left.pop(event.subject, None)
        elif event.kind in (LOST, LEFT):
            self._workers.pop(event.subject, None)
            if event.kind == LEFT:
                self.left[event.subject] = event.before

    def observe(
        self,
        workers: Mapping[str, catalog.WorkerRecord],
        failing: Iterable[cluster.ComputationFailures],
        heard: Callable[[str, str], bool] = lambda topology, computation: True,
        masters: Mapping[str, catalog.MasterRecord] = _NO_MASTERS,
        left: Mapping[str, catalog.WorkerRecord] = _NONE_LEFT,
    ) -> list[catalog.EventRecord]:
        """Return the events since the look before.

        Args:
            workers: The registered workers.
            failing: The computations whose hooks raise.
            heard: Whether all owners of a computation have reported. Without their reports, its hooks may still fail.
                A new leader has no reports, and neither has an interval's new owner.
            masters: The registered masters, by address.
            left: The last records of workers that were stopped in order, by name.
        """
        found = [*self._of_workers(workers, left), *self._of_masters(masters), *self._of_hooks(failing, heard)]
        self._began = True
        return found

    def _of_workers(
        self, workers: Mapping[str, catalog.WorkerRecord], left: Mapping[str, catalog.WorkerRecord]
    ) -> list[catalog.EventRecord]:
        if not self._began:  # a worker may have come and gone while no master led
            before = {name: one.endpoint.address for name, one in left.items() if name not in workers}
            self.left = {**before, **self.left}
        gone = []
        for name in sorted(self._workers.keys() - workers.keys()):
            # A departure of an earlier life says nothing of this one: an older version starts without deleting it.
            if name in left and left[name].started_at_us >= self._workers[name]:
                event = _worker(LEFT, name, f"worker {name} was stopped in order")
                event.before = self.left[name] = left[name].endpoint.address
            else:
                event = _worker(LOST, name, f"worker {name} is gone")
            gone.append(event)
        joined = []
        # The log may have forgotten workers that joined long ago, so a new leader takes those that it finds as known.
        for name in sorted(workers.keys() - self._workers.keys()) if self._began or not self._workers else ():
            address = workers[name].endpoint.address
            joined.append(_worker(JOINED, name, f"worker {name} at {address} is registered"))
        self._workers = {name: one.started_at_us for name, one in workers.items()}
        for name in [*(one for one in self.left if one in workers), *list(self.left)[:-MAX_LEFT]]:
            self.left.pop(name, None)
        return [*gone, *joined]

    def _of_masters(self, masters: Mapping[str, catalog.MasterRecord]) -> list[catalog.EventRecord]:
        """Return why masters lost their leases. A record forgets it when its master is restarted; the log does not."""
        texts = {
            address: interruption_text(address, record)
            for address, record in sorted(masters.items())
            if record.interruption
        }
        found = [
            catalog.EventRecord(kind=INTERRUPTED, actor=_ACTOR, subject=address, text=text)
            for address, text in texts.items()
            if text not in self._interruptions
        ]
        self._interruptions = set(texts.values())
        return found

    def _of_hooks(
        self, failing: Iterable[cluster.ComputationFailures], heard: Callable[[str, str], bool]
    ) -> list[catalog.EventRecord]:
        now = {(one.topology, one.computation): one for one in failing}
        # When the next attempt is, is of no interest later.
        begun = [
            _hooks(_FAILING, place, now[place].text.partition(_NEXT)[0]) for place in sorted(now.keys() - self._failing)
        ]
        over = {place for place in self._failing - now.keys() if heard(*place)}
        ended = [
            _hooks(_RECOVERED, place, f"hooks of {'/'.join(place)} do not fail any more") for place in sorted(over)
        ]
        self._failing = self._failing - over | now.keys()
        return [*begun, *ended]


def _worker(kind: str, name: str, text: str) -> catalog.EventRecord:
    return catalog.EventRecord(kind=kind, actor=_ACTOR, subject=name, text=text)


def _hooks(kind: str, place: tuple[str, str], text: str) -> catalog.EventRecord:
    return catalog.EventRecord(kind=kind, actor=_ACTOR, topology=place[0], subject=place[1], text=text)
