"""What must be true of a world that has become quiet: compared with a model that knows no failures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from millwheel.model.time import MAX_TIMESTAMP, TimeDomain
from millwheel.sdk.context import TimerSetting
from millwheel.store.contract import JournalHead, PartId
from millwheel.testing.store_effects import result_of
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.base_parts import inherited_rows, own_rows
from millwheel.worker.interval.divided import names_base
from millwheel.worker.interval.entry import TimerRow, decode_part
from millwheel.worker.interval.recovery import recover
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.timers import effective_hold
from millwheel.worker.messages import Opened, OpenedParent
from simulation.held_ids import pending_ids
from tests.interval.programs import Event, Outside, end_of, items_of
from tests.interval.world import World

__all__ = [
    "all_timers",
    "check_counts",
    "check_productions_in_order",
    "check_quiet",
    "check_reached",
    "check_soft_state",
    "decoded",
]


def check_quiet(world: World) -> None:
    """Nothing is left anywhere, and every watermark has reached plus infinity (G8)."""
    assert world.injector.unacked == {}
    assert world.parents == {}, "every child has let go of its parents"
    for owner in world.current.values():
        state = owner.core.state
        assert (state.holds.output, state.watermark) == (MAX_TIMESTAMP, MAX_TIMESTAMP), owner.journal
        intake, outbox = state.intake, state.outbox
        assert (intake.records, intake.bytes, len(intake.pending)) == (0, 0, 0), owner.journal
        assert not intake.queue
        assert not state.blocked.keys
        assert not state.blocked.ready
        unacked = outbox.unacked
        assert (unacked.records, unacked.bytes, len(outbox), len(unacked.held)) == (0, 0, 0, 0), owner.journal
        assert pending_ids(state.dedup) == 0
        assert state.journal.sealed == state.committed
        assert not any(map(len, state.timers.tables.values()))
        assert len(state.holds) == 0, owner.journal
        assert state.cells.bytes_held == sum(
            len(key) + len(cell.encoded) * 3 + 400 for key, cell in state.cells.items()
        )
    assert all(value == MAX_TIMESTAMP for value in world.broadcast.values())


def _states(world: World, core: IntervalCore, computation: str) -> dict[bytes, bytes]:
    keys = core.state.config.keys
    rows = result_of(world.store.scan_states(computation, keys, None, 10_000))
    found = {row.key: row.blob for row in rows}
    found |= {key: cell.encoded for key, cell in core.state.cells.items()}
    return {key: blob for key, blob in found.items() if blob}


def check_soft_state(world: World) -> None:
    """What each owner has in memory is what a takeover would read now (G12). Holds between commits, too."""
    for journal, owner in world.current.items():
        owner.core.check_invariants()
        config = owner.core.state.config
        if owner.dead or owner.core.phase.name != "SERVING":
            continue
        head: JournalHead = result_of(world.store.read_head(journal))
        if head.commit != owner.core.state.journal.sealed:
            continue
        fresh = world.core(config.computation, config.keys, journal, 1 << 40)
        recover(fresh.state, _opened(world, journal))
        mine, theirs = owner.core.state, fresh.state
        assert _states(world, owner.core, config.computation) == _states(world, fresh, config.computation), journal
        for domain in TimeDomain:
            assert all_timers(world, mine, domain) == all_timers(world, theirs, domain), journal
        assert mine.holds.of_keys == theirs.holds.of_keys
        assert mine.clocks.key_bounds.rows() == theirs.clocks.key_bounds.above(mine.watermark).rows()
        assert theirs.watermark <= mine.watermark
        assert all(key in config.keys for key in _producers(theirs)), "productions are sent by who has their key"
        stored = Counter(_productions(theirs))
        assert not Counter(_productions(mine)) - stored, "every production that is pending is stored"
        held = [effective_hold(one[2], domain) for domain in TimeDomain for one in all_timers(world, mine, domain)]
        held += mine.holds.of_keys.values()
        expected = min((hold for hold in held if hold is not None), default=MAX_TIMESTAMP)
        assert theirs.holds.min() <= expected
        assert mine.holds.min() <= expected
        if not theirs.timers.spilled:
            assert theirs.holds.min() == expected
        counts, stored_counts = mine.counts, theirs.counts
        if mine.committed == head.commit and mine.program.options.exactly_once:
            assert (counts.records, counts.dead_letters) == (stored_counts.records, stored_counts.dead_letters)


def all_timers(world: World, state: IntervalState, domain: TimeDomain) -> list[tuple[bytes, str, TimerSetting]]:
    """What counts of one domain, in memory and in the store."""
    found = list(state.timers.tables[domain].items())
    for part in state.timers.spilled.of_domain(domain):
        (blob,) = result_of(world.store.read_parts(state.config.journal, [part.rows]))
        rows = state.timers.spilled.standing(decode_part(blob, list[TimerRow], "far part"))
        found += [(row[0], row[2], TimerSetting._make(row[3:])) for row in rows]
    assert len({(key, tag) for key, tag, _ in found}) == len(found), "one copy counts of each timer"
    return sorted(found)


def _opened(world: World, journal: str) -> Opened:
    """What a takeover would read."""
    head: JournalHead = result_of(world.store.read_head(journal))
    parents = [] if names_base(head.parts) else world.parents.get(journal, [])
    sealed = [result_of(world.store.read_head(parent.journal)) for parent in parents]
    read = [
        OpenedParent(parent, one, *_read(world, parent.journal, one))
        for parent, one in zip(parents, sealed, strict=True)
    ]
    return Opened(head, *_read(world, journal, head), read)


def _read(world: World, journal: str, head: JournalHead) -> tuple[dict[PartId, bytes], list[bytes]]:
    blobs = result_of(world.store.read_parts(journal, head.parts))
    entries = result_of(world.store.read_entries(journal, head.truncation_point + 1, head.commit))
    return dict(zip(head.parts, blobs, strict=True)), entries


def _productions(state: Any) -> list[tuple[str, int, str, bytes]]:
    rows = [("", row) for row in own_rows(state.outbox)] + inherited_rows(state.outbox)
    return [(sequence, row[0], row[5][0][0], row[3]) for sequence, row in rows]


def _producers(state: Any) -> set[bytes]:
    return {row[1] for row in [*own_rows(state.outbox), *(row for _, row in inherited_rows(state.outbox))]}


def decoded(world: World, computation: str) -> dict[str, Any]:
    """Every key's state, decoded."""
    found: dict[str, Any] = {}
    for _, journal in world.slots[computation]:
        core = world.current[journal].core
        decode = core.state.program.state.decode
        for key, blob in _states(world, core, computation).items():
            found[key.decode()] = decode(blob)
    return found


def check_reached(world: World, events: list[Event]) -> None:
    """Each event counts in its group, at least once: the mapper recognises no copies, and the counter forgets ids."""
    groups = decoded(world, "counter")
    for event in events:
        if event.kind != "poison":
            assert {item.name for item in items_of(event)} <= set(groups[event.group].names), event


def check_counts(world: World, outside: Outside, events: list[Event]) -> None:
    """Each event counts once: in its key's log, in its group's, in its window; timers fire once each (G1, G6)."""
    good = [event for event in events if event.kind != "poison"]
    made = [item for event in good for item in items_of(event)]
    logs = decoded(world, "mapper")
    for key in {event.key for event in good}:
        assert sorted(logs[key].names) == sorted(str(event.number) for event in good if event.key == key), key
    groups = decoded(world, "counter")
    assert [wrong for seen in [*logs.values(), *groups.values()] for wrong in seen.wrong] == []
    for group in {item.group for item in made}:
        assert sorted(groups[group].names) == sorted(item.name for item in made if item.group == group), group
    mappers = [world.current[journal].core.state for _, journal in world.slots["mapper"]]
    assert sum(state.counts.records for state in mappers) == len(events), "each record is in one interval's totals"
    letters = Counter(letter.key for stream, letter, _ in world.out if stream == "dead-letters")
    poisoned = Counter(event.key for event in events if event.kind == "poison")
    assert letters == poisoned
    counted: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for stream, value, _ in world.out:
        if stream == "out" and value[0] != "ends":
            counted[value[0], value[1]] += value[2]
            times[value[0], value[1]] += 1
    windows = Counter((item.group, str(end_of(item.time))) for item in made)
    walls = Counter((event.group, f"wall {event.number}") for event in good if event.kind == "wall")
    assert counted == windows + walls
    if outside.on_time:
        assert set(times.values()) <= {1}
        ends = {f"end {event.key} {end_of(event.time)}" for event in good}
        assert sorted(groups["ends"].names if ends else []) == sorted(ends)


def check_productions_in_order(world: World, events: list[Event]) -> None:
    """What a mapper's key has produced is processed by each group in the order of the key's commits (G15)."""
    group_of = {str(event.number): event.group for event in events}
    groups = decoded(world, "counter")
    for key, log in decoded(world, "mapper").items():
        mine = set(log.names)
        for group in {group_of[name] for name in mine}:
            made = [name for name in log.names if group_of[name] == group]
            taken = [name for name in groups[group].names if name in mine]
            assert taken == made, f"group {group} of key {key}"
        ends = [int(name.rpartition(" ")[2]) for name in _names(groups, "ends") if name.startswith(f"end {key} ")]
        assert ends == sorted(ends), f"timers of key {key}"


def _names(groups: dict[str, Any], group: str) -> list[str]:
    return groups[group].names if group in groups else []
