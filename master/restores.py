"""Restores of snapshots in progress: nothing that they write stays in the store for nothing (section 6.2).

A restore writes into the store under fresh ids, which no topology names until its last transaction. So its first
transaction makes a RestoreRecord with these ids, and the last one deletes that record.

Invariant: what a restore has written is named by its RestoreRecord or by the topology, and never by both. Only the term
that began a restore may end it. All other records are those of masters that died: this term drops what they name.

Who could break it:

- A deposed master that ends its restore later. Its transaction compares the leadership, so it fails.
- A replica that leads again. Its new term does not know the restore, and refuses to end it.
- A last transaction of unknown outcome that takes effect late. To give up a restore changes its record, which that
  transaction compares. Only then anything is dropped.
- A deposed master that still writes. It stops when it knows that its term is over. The store refuses entries and rows
  for journals that were dropped. A call that was in flight may leave one empty journal or one part of it.
"""

from __future__ import annotations

from millwheel.master.change_plan import ChangePlan, PlanBuilder
from millwheel.master.messages import AbandonRestore, BeginRestore, RestoreTopology
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import LIVE_STATES, Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["RestoresInProgress", "repeated_restore"]


class RestoresInProgress:
    """The restores that one term of a master has begun, and the collection of all others."""

    def __init__(self) -> None:
        self._begun: set[int] = set()
        """The numbers of restores that may still end with a topology."""

    def plan(self, known: Catalog, request: BeginRestore | AbandonRestore) -> ChangePlan:
        """Plan the record of a restore that begins. Or give up one: ``collect`` drops it next."""
        number, builder = request.number, PlanBuilder(known)
        if isinstance(request, BeginRestore):
            self._begun = {one for one in self._begun if one in known.restores} | {number}
            builder.put(keys.restore_key(number), request.record)
        elif number in known.restores:
            abandoned = catalog.RestoreRecord()
            abandoned.CopyFrom(known.restores[number])
            abandoned.abandoned = True
            builder.put(keys.restore_key(number), abandoned)
        return builder.plan(lambda: known.restores.get(number, catalog.RestoreRecord()))

    def check(self, known: Catalog, request: RestoreTopology) -> None:
        """Refuse the end of a restore that another term may drop, or has dropped."""
        done = known.topologies.get(request.record.spec.name)
        if done is not None and done.incarnations == request.record.incarnations:
            return  # a transaction of unknown outcome has taken effect
        if not self._continues(known, request.number):
            raise RequestError(
                FailureCode.ABORTED,
                f"the restore of topology {request.record.spec.name!r} was given up when another master's term began",
                "restore again",
                reason="RESTORE_ABANDONED",
            )

    def _continues(self, known: Catalog, number: int) -> bool:
        return number in self._begun and number in known.restores and not known.restores[number].abandoned

    def collect(self, known: Catalog) -> ChangePlan:
        """Drop one incarnation of a restore that nothing continues. With the last one, its record is deleted."""
        for number, record in sorted(known.restores.items()):
            if self._continues(known, number) or keys.restore_key(number) in known.damaged:
                continue
            builder = PlanBuilder(known)
            if len(record.incarnations) <= 1:
                builder.delete(keys.restore_key(number))
            else:
                rest = catalog.RestoreRecord()
                rest.CopyFrom(record)
                del rest.incarnations[0]
                builder.put(keys.restore_key(number), rest)
            first = tuple(record.incarnations[:1])
            journals = tuple(journal for one in first for journal in one.journals)
            return builder.plan(
                drop_journals=journals, drop_incarnations=tuple(IncarnationId(one.incarnation) for one in first)
            )
        return ChangePlan()


def repeated_restore(known: Catalog, name: str, request_id: str) -> catalog.TopologyRecord | None:
    """The topology that a restore with this request id has made. None: there was none.

    Raises:
        RequestError: The topology was cancelled since. A late retry does not make it again.
    """
    record = known.topologies.get(name)
    if record is None or not request_id or record.restore_request_id != request_id:
        return None
    if record.state in LIVE_STATES:
        return record
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"topology {name!r} was restored by this request, and cancelled since",
        "restore it again with a new request id",
        reason="RESTORE_CANCELLED",
    )
