"""The log of events in the coordinator: a bounded number of records, each written with the change it describes. Pure.

Invariant: an event is in the log exactly if its change took effect, and its number is one above that of the event
before. A second leader could break this. So each transaction compares the leadership. A leader makes one change at a
time, from a catalog that shows the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from millwheel.coordination.contract import Put
from millwheel.master.change_plan import ChangePlan
from millwheel.master.messages import Intervals, RecordEvent
from millwheel.model.catalog_keys import event_key
from millwheel.model.time import Timestamp, seconds
from millwheel.model.wording import counted, named
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = [
    "ASSIGNED",
    "MAX_EVENTS",
    "assigned_text",
    "owner_changes",
    "plan_event",
    "readable_events",
    "recorded",
    "summed",
]

MAX_EVENTS: Final = 1_000
ASSIGNED: Final = "intervals.assigned"
"""The kind of an event that sums up assignments. A mass reassignment takes many transactions, and is one event."""
_SUMMED_WITHIN: Final = seconds(10)
"""An assignment that follows another one within this time belongs to the same event."""
_MAX_OWNERS: Final = 50
"""An event names so many pairs of owners."""
_MAX_TEXT: Final = 1_000


def recorded(kept: Mapping[int, bytes], event: catalog.EventRecord, now: Timestamp) -> tuple[Put, tuple[str, ...]]:
    """Return the put that records an event, and the keys of events that are deleted for it.

    Args:
        kept: The events of the catalog, encoded, by number.
        event: The event. Its number and its time are set here.
        now: The wall time.
    """
    last = max(kept, default=0)
    event.at_us, event.text = now, event.text[:_MAX_TEXT]
    if event.kind == ASSIGNED and last:
        before = _readable(kept[last])
        if before is not None and before.kind == ASSIGNED and 0 <= now - before.last_at_us <= _SUMMED_WITHIN:
            event = summed(before, event)
            event.last_at_us = now
            return Put(event_key(last), event.SerializeToString(deterministic=True)), ()
    event.number = last + 1
    event.last_at_us = now if event.kind == ASSIGNED else 0
    old = sorted(number for number in kept if number <= event.number - MAX_EVENTS)
    # One transaction deletes few, because a coordinator limits its size. The rest go with the next events.
    return Put(event_key(event.number), event.SerializeToString(deterministic=True)), tuple(map(event_key, old[:1]))


def readable_events(kept: Mapping[int, bytes]) -> Iterator[catalog.EventRecord]:
    """Yield the events of the catalog, the oldest first, without those that are damaged."""
    for _, value in sorted(kept.items()):
        if (event := _readable(value)) is not None:
            yield event


def _readable(value: bytes) -> catalog.EventRecord | None:
    try:
        return catalog.EventRecord.FromString(value)
    except ValueError:
        return None


def summed(before: catalog.EventRecord, event: catalog.EventRecord) -> catalog.EventRecord:
    """Return the sum of two events of assignments. It has the number and the time of the first."""
    counts: dict[tuple[str, str], int] = {}
    for change in (*before.owners, *event.owners):
        counts[change.before, change.after] = counts.get((change.before, change.after), 0) + change.intervals
    whole = catalog.EventRecord()
    whole.CopyFrom(before)
    del whole.owners[:]
    pairs = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    whole.owners.extend(owner_changes(pairs))
    whole.text = assigned_text(whole.owners)
    return whole


def owner_changes(pairs: Iterable[tuple[tuple[str, str], int]]) -> list[catalog.OwnerChange]:
    """Return the counts of intervals by owners. Those beyond a bound are added up in the last one, without names."""
    found = [catalog.OwnerChange(before=one, after=other, intervals=count) for (one, other), count in pairs]
    if len(found) > _MAX_OWNERS:
        rest = sum(one.intervals for one in found[_MAX_OWNERS - 1 :])
        found = [*found[: _MAX_OWNERS - 1], catalog.OwnerChange(before="*", after="*", intervals=rest)]
    return found


def assigned_text(owners: Iterable[catalog.OwnerChange]) -> str:
    """Describe assignments in a sentence."""
    changes = list(owners)
    total = sum(one.intervals for one in changes)
    lost = sorted({one.before for one in changes if one.before not in ("", "*") and one.before != one.after})
    if changes and not any(one.before for one in changes):
        return f"{counted(total, 'interval')} {'gets' if total == 1 else 'get'} an owner"
    noun = "interval goes to another owner" if total == 1 else "intervals go to other owners"
    own = f"{'owns' if len(lost) == 1 else 'own'} {'it' if total == 1 else 'them'}"
    since = f", because {named(lost)} no longer {own}" if lost else ""
    return f"{total:,} {noun}{since}"


def _same(kept: catalog.EventRecord, event: catalog.EventRecord) -> bool:
    before = (kept.kind, kept.actor, kept.topology, kept.subject, kept.text)
    return before == (event.kind, event.actor, event.topology, event.subject, event.text[:_MAX_TEXT])


def plan_event(kept: Mapping[int, bytes], request: RecordEvent, now: Timestamp) -> ChangePlan:
    """Plan to record an event that no other change explains.

    No change shows whether it is recorded already, after a transaction of unknown outcome. But then it is the last
    event, because a leader makes one change at a time.
    """
    event = catalog.EventRecord()
    event.CopyFrom(request.event)
    last = _readable(kept[max(kept)]) if kept else None
    if last is not None and _same(last, event):
        return ChangePlan(answer=lambda: Intervals(()))
    put, old = recorded(kept, event, now)
    return ChangePlan(puts=(put,), deletes=old, answer=lambda: Intervals(()))
