"""Plans that change the owner or the bounds of intervals: move, split, merge, release of parents (7.1; G11). Pure.

A split or a merge only names the journals of the children, and never touches the store. The first owner that opens a
child seals its parents and creates its journal. One transaction replaces the parents by the children, and completes
the change for good.

``parents`` stay in the record until the child's owner reports, under the interval's current sequencer, that it no
longer needs them. A journal that no interval names after that is *retired*, and dropped as garbage. Invariant: a
retired journal is never named again, because parents are only taken from existing intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from millwheel.errors import did_you_mean
from millwheel.master.assignment import IntervalAssigner, code_of, may_run
from millwheel.master.change_plan import ChangePlan, PlanBuilder
from millwheel.master.messages import (
    IntervalName,
    Intervals,
    MergeIntervals,
    MoveInterval,
    ReleaseParents,
    ReshapeRequest,
    SplitInterval,
)
from millwheel.master.quotas import check_intervals
from millwheel.master.successors import successor_of
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import ACTIVE_STATES, Catalog
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal, new_journal
from millwheel.model.interval_map import interval_from_proto, interval_to_proto
from millwheel.model.keys import KeyInterval
from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.model.wording import state_name
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = [
    "SPLIT_BY_OPERATOR",
    "FoundInterval",
    "IntervalChange",
    "find",
    "find_next",
    "incarnation_of",
    "interval_change",
    "journals_to_read",
    "plan_release",
    "plan_reshape",
    "repeated",
    "shown",
]

SPLIT_BY_OPERATOR: Final = "split:"
"""The prefix of the ``request_id`` of intervals that an operator's split has made."""

_LIST: Final = "`millwheel interval list` shows those that there are"
_MAX_RELEASES: Final = 24
"""Each release changes two chunks and retires two journals at most. This many fit into one transaction."""

_NO_LOADS: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class FoundInterval:
    """One interval of one incarnation. ``code`` None: the interval belongs to a stream's log."""

    incarnation: IncarnationId
    interval: catalog.IntervalRecord
    code: str | None

    @property
    def keys(self) -> KeyInterval:
        """The keys of the interval."""
        return interval_from_proto(self.interval.keys)


# Lookup of the intervals that a request names.


def incarnation_of(known: Catalog, name: IntervalName) -> IncarnationId:
    """Return the incarnation that ``name`` refers to. RequestError (NOT_FOUND) names what exists instead."""
    if not name.topology and not name.computation and name.journal:
        incarnation = incarnation_of_journal(name.journal)
        if incarnation not in known.maps:
            _refuse_unknown_journal(name.journal)
        return incarnation
    record = known.topologies.get(name.topology)
    if record is None:
        refuse_unknown_topology(name.topology, known)
    found = record.incarnations.get(name.computation)
    if found is None:
        there = sorted(record.incarnations)
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"topology {name.topology!r} has no computation {name.computation!r}"
            f"{did_you_mean(name.computation, there)}",
            f"it has {', '.join(there)}",
            reason="COMPUTATION_UNKNOWN",
        )
    if found not in known.maps:
        _refuse_not_running(record)
    return found


def find(known: Catalog, name: IntervalName) -> FoundInterval:
    """Return the interval that ``name`` refers to. RequestError says why there is none, or that there are several."""
    incarnation = incarnation_of(known, name)
    found = _interval(known, incarnation, name)
    if found is None:
        _refuse_unknown_journal(name.journal)
    running = known.computation(incarnation)
    if running is not None and running[0].state not in ACTIVE_STATES:
        _refuse_not_running(running[0])
    if running is None and known.log_of(incarnation) is None:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"{incarnation} is being removed: its intervals only deliver what they still have",
            reason="NOT_RUNNING",
        )
    return FoundInterval(incarnation, found, code_of(known, incarnation))


def _interval(known: Catalog, incarnation: IncarnationId, name: IntervalName) -> catalog.IntervalRecord | None:
    interval_map = known.maps[incarnation]
    if name.journal:
        return interval_map.of_journal(name.journal)
    if name.key is not None:
        _check_length(name.key)
        return interval_map.locate(name.key)
    if len(interval_map) != 1:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{name.topology}/{name.computation} has {len(interval_map):,} intervals, and none of them is named",
            "name one by a key in it, or by its journal",
            reason="INTERVAL_UNNAMED",
        )
    return interval_map.locate(b"")


def find_next(known: Catalog, place: FoundInterval) -> FoundInterval:
    """Return the next interval by key; RequestError (FAILED_PRECONDITION) if there is none."""
    end = place.keys.end
    found = None if end is None else known.locate(place.incarnation, end)
    if found is not None:
        return FoundInterval(place.incarnation, found, place.code)
    alone = place.keys.start == b""
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"{shown(place)} has nothing to merge with: "
        + ("it has all the keys already" if alone else "no interval comes after it"),
        "" if alone else "name the interval before it",
        reason="NO_NEIGHBOUR",
    )


def repeated(known: Catalog, request: ReshapeRequest) -> Intervals | None:
    """Return the intervals that this request has already made.

    None: it has not run, or a later request replaced them.
    """
    if not request.request_id:
        return None
    mark = _mark(request)
    made = [one for one in known.maps[incarnation_of(known, request.interval)] if one.request_id == mark]
    return Intervals(tuple(made)) if made else None


def _mark(request: ReshapeRequest) -> str:
    """The id that an interval keeps of its request.

    It includes the verb: an id reused for another verb is another one.
    """
    verbs = {MoveInterval: "move:", SplitInterval: SPLIT_BY_OPERATOR, MergeIntervals: "merge:"}
    return verbs[type(request)] + request.request_id if request.request_id else ""


def shown(place: FoundInterval) -> str:
    """Describe an interval for people."""
    return f"interval {place.keys} of {place.incarnation} (journal {place.interval.journal})"


# Plans.


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """What a request to reshape intervals changes, according to the current catalog.

    ``old``: the intervals before it. ``made``: the resulting intervals. ``releases``: intervals that change their
    owner or end. ``opens``: intervals that start at another worker. ``request`` names the chosen worker, so that the
    change uses the prepared worker.
    """

    request: ReshapeRequest
    incarnation: IncarnationId
    old: tuple[catalog.IntervalRecord, ...]
    made: tuple[catalog.IntervalRecord, ...]
    releases: tuple[catalog.IntervalRecord, ...]
    opens: tuple[catalog.IntervalRecord, ...]


def journals_to_read(interval: catalog.IntervalRecord) -> list[str]:
    """Return the journals that an owner of ``interval`` may have to read: its own and its parents'."""
    return [interval.journal, *(parent.journal for parent in interval.parents)]


def interval_change(
    known: Catalog, request: ReshapeRequest, loads: Mapping[str, float] = _NO_LOADS
) -> IntervalChange | None:
    """Return what a request changes; None if it is done already, RequestError if it is impossible."""
    return None if repeated(known, request) is not None else _interval_change(known, request, PlanBuilder(known), loads)


def plan_reshape(
    known: Catalog, request: ReshapeRequest, unusable: int, loads: Mapping[str, float] = _NO_LOADS
) -> ChangePlan:
    """Plan one transaction that moves, splits or merges; RequestError if the request is impossible."""
    done = repeated(known, request)
    if done is not None:
        return ChangePlan(answer=lambda: done)
    builder = PlanBuilder(known, unusable)
    change = _interval_change(known, request, builder, loads)
    builder.put_intervals(change.incarnation, change.made)
    journals = [one.journal for one in change.made]
    plan = builder.plan(lambda: _now(known, change.incarnation, journals))
    return replace(plan, before=change.old, after=change.made)


def _interval_change(
    known: Catalog, request: ReshapeRequest, builder: PlanBuilder, loads: Mapping[str, float]
) -> IntervalChange:
    place = find(known, request.interval)
    if request.expected not in (0, place.interval.sequencer):
        raise RequestError(
            FailureCode.ABORTED,
            f"{shown(place)} has changed hands since this was decided",
            "look at it again",
            reason="SEQUENCER_CHANGED",
        )
    work = _Reshaping(known, builder, IntervalAssigner(known, loads))
    if isinstance(request, MoveInterval):
        old, made = work.move(place, request)
    elif isinstance(request, SplitInterval):
        old, made = work.split(place, request)
    else:
        old, made = work.merge(place, request)
    owners = {one.owner.worker_id for one in old}
    return IntervalChange(
        replace(request, worker=made[-1].owner.worker_id),
        place.incarnation,
        tuple(old),
        tuple(made),
        tuple(one for one in old if one not in made and work.is_owned(one)),
        tuple(one for one in made if one.HasField("owner") and one.owner.worker_id not in owners),
    )


_Replacement = tuple[list[catalog.IntervalRecord], list[catalog.IntervalRecord]]
"""The existing intervals, and the intervals that replace them."""


class _Reshaping:
    """One reshaping request in progress."""

    def __init__(self, known: Catalog, builder: PlanBuilder, assigner: IntervalAssigner) -> None:
        self._known = known
        self._builder = builder
        self._assigner = assigner
        self.is_owned = assigner.is_owned

    def move(self, place: FoundInterval, request: MoveInterval) -> _Replacement:
        """Change the sequencer and the owner. The journal stays, and so does the state."""
        target = request.worker or self._assigner.choose(place.code, place.interval.owner.worker_id)
        if target is None:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"no worker but the owner of {shown(place)} could run it",
                "start another worker first",
                reason="NO_OTHER_WORKER",
            )
        self._check_worker(target, place)
        moved = _copy(place.interval)
        moved.request_id = _mark(request) or moved.request_id
        if target != place.interval.owner.worker_id or not self._assigner.is_owned(place.interval):
            self._assigner.give(moved, target, self._builder)
        return [place.interval], [moved]

    def split(self, place: FoundInterval, request: SplitInterval) -> _Replacement:
        """Make two children with new journals. Both start from the parent's state."""
        if not place.code:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"{shown(place)} is a stream's log, and logs are never split: their records have one order",
                reason="IS_LOG",
            )
        _check_independent(place)
        _check_length(request.at)
        if (found := self._known.computation(place.incarnation)) is not None:
            check_intervals(self._known, found[0], 1)
        if request.at not in place.keys or request.at == place.keys.start:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"key {_text(request.at)} does not divide {shown(place)}: it is outside"
                if request.at not in place.keys
                else f"key {_text(request.at)} does not divide {shown(place)}: nothing would be below it",
                "give a key within the interval, above its first one",
                reason="KEY_OUTSIDE",
            )
        lower, upper = place.keys.split(request.at)
        owner = self._owner(place)
        made = [
            self._child(place, [place.interval], lower, owner, _mark(request)),
            self._child(place, [place.interval], upper, request.worker or owner, _mark(request)),
        ]
        return [place.interval], made

    def merge(self, place: FoundInterval, request: MergeIntervals) -> _Replacement:
        """Make one child that starts from both parents."""
        other = find_next(self._known, place)
        _check_independent(place)
        _check_independent(other)
        whole = KeyInterval(place.keys.start, other.keys.end)
        owner = request.worker or self._owner(place) or self._owner(other)
        child = self._child(place, [place.interval, other.interval], whole, owner, _mark(request))
        return [place.interval, other.interval], [child]

    def _child(
        self, place: FoundInterval, parents: Sequence[catalog.IntervalRecord], its: KeyInterval, owner: str, mark: str
    ) -> catalog.IntervalRecord:
        child = successor_of(*parents)
        child.keys.CopyFrom(interval_to_proto(its))
        child.request_id = mark
        child.journal = new_journal(place.incarnation, self._builder.draw())
        # Larger than its parents' sequencers even without an owner. A later owner gets a still larger one.
        child.sequencer = self._builder.draw()
        for parent in parents:
            child.parents.add(journal=parent.journal, keys=parent.keys)
        if owner:
            self._check_worker(owner, place)
            self._assigner.give(child, owner, self._builder)
        else:
            self._assigner.assign(child, place.code, self._builder)
        return child

    def _owner(self, place: FoundInterval) -> str:
        """Return the live owner, or an empty string if there is none."""
        return place.interval.owner.worker_id if self._assigner.is_owned(place.interval) else ""

    def _check_worker(self, worker: str, place: FoundInterval) -> None:
        record = self._known.workers.get(worker)
        if record is None:
            there = sorted(self._known.workers)
            raise RequestError(
                FailureCode.NOT_FOUND,
                f"there is no worker {worker!r}{did_you_mean(worker, there)}",
                f"registered: {', '.join(there) or 'none'}",
                reason="WORKER_UNKNOWN",
            )
        if not may_run(record, place.code):
            what = "a stream's log" if place.code is None else f"one of code package {place.code[:12]}"
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"worker {worker!r} runs code package {record.package[:12]} alone, and {shown(place)} is {what}",
                f"those that may run it: {', '.join(self._assigner.candidates(place.code)) or 'none'}",
                reason="WORKER_UNFIT",
            )


def _now(known: Catalog, incarnation: IncarnationId, journals: list[str]) -> Intervals:
    found = (known.maps[incarnation].of_journal(journal) for journal in journals)
    return Intervals(tuple(one for one in found if one is not None))


def _copy(interval: catalog.IntervalRecord) -> catalog.IntervalRecord:
    copy = catalog.IntervalRecord()
    copy.CopyFrom(interval)
    return copy


def plan_release(known: Catalog, request: ReleaseParents) -> ChangePlan:
    """Plan to forget parents that intervals no longer need, and to retire their journals.

    One plan covers many intervals.
    """
    builder = PlanBuilder(known)
    released: dict[str, catalog.IntervalRecord] = {}
    retiring: dict[str, tuple[IncarnationId, catalog.ParentJournal]] = {}
    for journal, sequencer in sorted(request.independent.items()):
        incarnation = incarnation_of_journal(journal)
        interval_map = known.maps.get(incarnation)
        old = None if interval_map is None else interval_map.of_journal(journal)
        if old is None or not old.parents or old.sequencer != sequencer:
            continue
        if len(released) == _MAX_RELEASES or builder.is_full:
            break
        free = _copy(old)
        free.ClearField("parents")
        builder.put_intervals(incarnation, [free])
        released[journal] = free
        retiring.update((parent.journal, (incarnation, parent)) for parent in old.parents)
    for journal, (incarnation, parent) in retiring.items():
        if _naming(known, incarnation, parent) <= released.keys():
            builder.put(keys.retired_key(journal), catalog.RetiredJournalRecord(incarnation=incarnation))
    return builder.plan(lambda: Intervals(tuple(released.values())))


def _naming(known: Catalog, incarnation: IncarnationId, parent: catalog.ParentJournal) -> set[str]:
    """Return the journals of the intervals that name ``parent``. They lie within its keys."""
    keys_of_parent = interval_from_proto(parent.keys)
    found: set[str] = set()
    at: bytes | None = keys_of_parent.start
    while at is not None and at in keys_of_parent:
        interval = known.locate(incarnation, at)
        if interval is None:
            break
        if any(one.journal == parent.journal for one in interval.parents):
            found.add(interval.journal)
        at = interval_from_proto(interval.keys).end
    return found


# Refusals.


def _check_independent(place: FoundInterval) -> None:
    if not place.interval.parents:
        return
    parents = ", ".join(parent.journal for parent in place.interval.parents)
    owner = place.interval.owner.worker_id
    waits = f"its owner {owner}" if owner else "an owner, which it has not,"
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"{shown(place)} was just made by a split or a merge, and still rests on {parents}",
        f"it waits for {waits} to write what it has of them to its own journal: try again in a few seconds",
        reason="HAS_PARENTS",
    )


def _check_length(key: bytes) -> None:
    if len(key) > MAX_KEY_BYTES:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"a key of {len(key):,} bytes is given",
            f"the limit is {MAX_KEY_BYTES:,}",
            reason="KEY_TOO_LONG",
        )


def _refuse_not_running(record: catalog.TopologyRecord) -> NoReturn:
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"topology {record.spec.name!r} is {state_name(record.state)}: no worker owns its intervals",
        "intervals change hands only while their topology runs",
        reason="NOT_RUNNING",
    )


def _refuse_unknown_journal(journal: str) -> NoReturn:
    raise RequestError(
        FailureCode.NOT_FOUND,
        f"no interval has journal {journal!r}: it never was, or was split or merged",
        _LIST,
        reason="INTERVAL_UNKNOWN",
    )


def _text(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
