"""What a move, a split or a merge would do: the intervals before and after it, and its effects in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millwheel.master import reshape_plans
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import MergeIntervals, MoveInterval, ReshapeRequest, SplitInterval
from millwheel.master.split_point import halving
from millwheel.model.catalog import Catalog
from millwheel.model.interval_map import interval_from_proto
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2 as wire

__all__ = ["preview_change"]

_NO_COPY = "No state is copied. Records for these keys wait for some milliseconds."


def preview_change(
    known: Catalog,
    book: LoadBook,
    request: ReshapeRequest,
    name: wire.IntervalName,
    loads: Mapping[str, float],
    *,
    halve: bool,
) -> wire.PlanIntervalChangeResponse:
    """Return what ``request`` would do now. RequestError if it is impossible.

    Args:
        known: The catalog.
        book: The workers' load reports.
        request: The change. Its request id is ignored, because nothing is carried out.
        name: The interval's name in the request of the client.
        loads: The cost of intervals by journal, in cores.
        halve: Whether a split takes the key that halves the load, instead of its own.
    """
    place = reshape_plans.find(known, request.interval)
    share = 0.0
    if isinstance(request, SplitInterval) and halve:
        division = halving(place, book)
        request, share = SplitInterval(request.interval, division.at, request.worker), division.smaller
    change = reshape_plans.interval_change(known, request, loads)
    assert change is not None, "a request without an id has not run before"
    response = wire.PlanIntervalChangeResponse(
        before=[_planned(one) for one in change.old],
        after=[_planned(one) for one in change.made],
        effects=_effects(change.request, change.old, change.made, share),
    )
    _fill(response, change.request, name, place.interval.sequencer)
    return response


def _planned(interval: catalog.IntervalRecord) -> wire.PlannedInterval:
    return wire.PlannedInterval(keys=interval.keys, worker_id=interval.owner.worker_id)


def _fill(
    response: wire.PlanIntervalChangeResponse,
    request: ReshapeRequest,
    name: wire.IntervalName,
    sequencer: int,
) -> None:
    """Put the request with all choices into the response."""
    filled: wire.MoveIntervalRequest | wire.SplitIntervalRequest | wire.MergeIntervalsRequest
    match request:
        case MoveInterval():
            filled = response.move
        case SplitInterval(at=at):
            filled = response.split
            filled.at = at
        case MergeIntervals():
            filled = response.merge
    filled.interval.CopyFrom(name)
    filled.worker_id, filled.expected_sequencer = request.worker, sequencer


def _effects(
    request: ReshapeRequest,
    old: Sequence[catalog.IntervalRecord],
    made: Sequence[catalog.IntervalRecord],
    share: float,
) -> Iterator[str]:
    match request:
        case MoveInterval():
            yield from _move_effects(old[0], made[0])
        case SplitInterval(at=at):
            yield from _split_effects(old[0], made, at, share)
        case MergeIntervals():
            yield from _merge_effects(old, made[0])


def _move_effects(old: catalog.IntervalRecord, made: catalog.IntervalRecord) -> Iterator[str]:
    before, after = old.owner.worker_id, made.owner.worker_id
    if made == old:
        yield f"Nothing changes: {after} owns the keys {_keys(old)} already."
        return
    yield f"Moves the keys {_keys(old)} {_from(before)}to {after}."
    yield _NO_COPY


def _split_effects(
    old: catalog.IntervalRecord, made: Sequence[catalog.IntervalRecord], at: bytes, share: float
) -> Iterator[str]:
    yield f"Splits the keys {_keys(old)} at key {_text(at)}. The upper half begins with that key."
    if share:
        yield f"The smaller half gets about {share:.0%} of the load."
    lower, upper = (one.owner.worker_id for one in made)
    before = old.owner.worker_id
    if lower == upper:
        yield f"Both halves stay on {lower}." if lower == before else f"Both halves go to {lower or 'no worker'}."
    else:
        yield f"The lower half stays on {lower}. The upper half moves to {upper}."
    yield _NO_COPY


def _merge_effects(old: Sequence[catalog.IntervalRecord], made: catalog.IntervalRecord) -> Iterator[str]:
    yield f"Merges the keys {_keys(old[0])} with the next ones, {_keys(old[1])}, into one interval."
    owner = made.owner.worker_id
    moving = [one for one in old if one.owner.worker_id != owner]
    if not moving:
        yield f"It stays on {owner}." if owner else "No worker owns it."
    for one in moving:
        yield f"The keys {_keys(one)} move {_from(one.owner.worker_id)}to {owner or 'no worker'}."
    yield _NO_COPY


def _from(worker: str) -> str:
    return f"from {worker} " if worker else ""


def _keys(interval: catalog.IntervalRecord) -> str:
    """Describe keys as the command line does."""
    return str(interval_from_proto(interval.keys))


def _text(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace"))
