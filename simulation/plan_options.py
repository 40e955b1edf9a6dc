"""What plans vary beyond topology and input: policies, cycles, kinds of injectors.

Each variation has its own random generator. So a new variation does not change the other choices of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from millwheel.model.time import seconds
from simulation.blocks import LIBRARY, plain_node
from simulation.combined_options import (
    changing_forms,
    growing_states,
    library_windows,
    replays,
    spilled_and_divided,
    spilled_timers,
    tight_bounds,
    weak_timers,
    windows_by_columns,
)
from simulation.connector_options import connectors
from simulation.operator_options import operators
from simulation.plan import Plan
from simulation.store_options import embedded, on_cassandra, suspended

__all__ = ["HOSTS", "vary"]

HOSTS: Final = ("m0", "m1", "t0", "t1", "w0", "w1", "w2")
"""The cluster's own processes: masters, candidates for the authority's shards, workers."""

_AN_HOUR: Final = 3_600_000_000

_PER_RECORD: Final = frozenset({"pass", "count", "slow", "flaky", "delay"})
"""Blocks that process each record independently."""


def vary(plan: Plan) -> None:
    """Apply a random selection of the variations to a plan."""
    for name, change, share in _CHANGES:
        chance = Random(f"{name} {plan.seed}")
        if chance.random() < share:
            change(plan, chance)


def _compact(plan: Plan, chance: Random) -> None:
    """A watcher that is some revisions behind the coordinator must read all values again."""
    plan.revisions_kept = chance.choice((1, 10, 50))


def _segments(plan: Plan, chance: Random) -> None:
    """The ids of consumed records go to the store in small groups, with their filters."""
    plan.tuning["ids"] = {"segment": chance.choice((1, 3, 10)), "run": chance.choice((1, 4)), "cached": 1}


def _divided(plan: Plan, chance: Random) -> None:
    """Most entries of intervals are larger than one append takes."""
    plan.tuning["core"]["entry_bytes"] = chance.choice((60, 200, 600))


def _slices(plan: Plan, chance: Random) -> None:
    """State rows are written in slices of a few keys, and soon."""
    plan.tuning["core"].update(flush_slice=chance.choice((1, 3)), flush_interval=10_000)


def _bases(plan: Plan, chance: Random) -> None:
    """The authority's journals are short: its shards start from base parts, several for each base."""
    few = chance.choice((1_000, 5_000))
    plan.tuning["authority"] = {"snapshot_bytes": few, "part_bytes": 100, "entry_bytes": chance.choice((100, 10_000))}


def _versions(plan: Plan, chance: Random) -> None:
    """New versions come one after the other."""
    plan.versions = chance.randint(2, 4)


def _merges(plan: Plan, chance: Random) -> None:
    """Neighbouring intervals are merged. Each computation starts with at least two."""
    plan.intervals = max(plan.intervals, 2)
    plan.merges = chance.randint(2, 6)


def _zombies(plan: Plan, chance: Random) -> None:
    """Owners wake up after their leases have ended, and their former store requests arrive then (figure 12)."""
    plan.zombies = chance.randint(1, 2)


def _one_way(plan: Plan, chance: Random) -> None:
    """Some hosts' messages do not arrive, while messages to these hosts do."""
    plan.one_way = chance.randint(1, 3)


def _islands(plan: Plan, chance: Random) -> None:
    """Owners are cut off for longer than their leases; their store requests arrive afterwards (figure 12)."""
    plan.islands = chance.randint(1, 2)


def _copies_circle(plan: Plan) -> bool:
    """Whether copies count as records and return on a cycle.

    Each new owner makes more copies, so such a plan must not have dozens of owners.
    """
    return any(node["feedback"] for node in plan.nodes) and not all(node["exactly_once"] for node in plan.nodes)


def _copied(plan: Plan) -> set[str]:
    """The streams that may carry copies, because a computation before them is not exactly-once."""
    streams = set[str]()
    for node in plan.nodes:  # in the order of the streams
        if not node["exactly_once"] or streams & set(node["inputs"]):
            streams.update(node["outputs"])
    return streams


def _balanced(plan: Plan, chance: Random) -> None:
    """Masters move, split and merge intervals to balance their load."""
    if _copies_circle(plan):
        return
    plan.balanced = chance.choice((0.0005, 0.005, 0.02))
    plan.intervals = max(plan.intervals, chance.choice((1, 2, 3)))


def _retired(plan: Plan, chance: Random) -> None:
    """Injector processes are retired after they finish, while the rest of the run continues."""
    plan.retired = True


def _stops(plan: Plan, chance: Random) -> None:
    """A computation stops when records fail repeatedly, until an operator resumes it at another worker.

    This needs a computation for which copies do not count, and which gets none: while it is stopped, ever more come.
    When one record of a delivery fails, each new owner runs the earlier records of the delivery again.
    """
    if _copies_circle(plan):
        return
    copied = _copied(plan)
    nodes = [node for node in plan.nodes if node["kind"] in ("count", "slow", "flaky") and "letters" not in node]
    nodes = [node for node in nodes if node["exactly_once"] and not copied & set(node["inputs"])]
    nodes = [node for node in nodes if node["name"] != plan.renewed]
    if nodes:
        chance.choice(nodes).update(kind="flaky", stops=chance.choice((1, 2)))
        plan.tended = True


def _guests(plan: Plan, chance: Random) -> None:
    """A second subscriber also reads the sinks."""
    plan.guests = True


def _probed(plan: Plan, chance: Random) -> None:
    """A client requests percentiles."""
    plan.probed = True


def _looked_up(plan: Plan, chance: Random) -> None:
    """A client looks up the states of a computation that counts."""
    plan.looked_up = bool(plan.counter)


def _late_readers(plan: Plan, chance: Random) -> None:
    """Sinks are read after their records have left memory."""
    plan.readers_late = chance.uniform(0.3, 1.0) * plan.span
    plan.tuning["log"].update(memory_bytes=1, segment_bytes=300, checkpoint_entries=2)


def _clocks(plan: Plan, chance: Random) -> None:
    """Wall clocks differ from each other and drift."""
    for name in HOSTS:
        if chance.random() < 0.5:
            plan.clocks[name] = (chance.uniform(-2.0, 2.0), chance.choice((0.0, -0.02, 0.02)))


def _weakly(plan: Plan, chance: Random) -> None:
    """A computation has weak productions, and its straggler delay is shorter or longer than usual."""
    node = chance.choice(plan.nodes)
    if node["kind"] in _PER_RECORD and not node["late"]:
        node.update(kind="pass", strong=False, arguments=[])
    for one in plan.nodes:
        if not one["strong"]:
            one["straggler"] = chance.choice((10_000, 200_000, 5_000_000))


def _letters(plan: Plan, chance: Random) -> None:
    """A computation gives up on records that fail repeatedly: each reaches its sinks or becomes a dead letter."""
    nodes = [node for node in plan.nodes if node["kind"] in ("count", "slow", "flaky")]
    simple = all(node["exactly_once"] and not node["late"] for node in plan.nodes)
    if nodes and simple and not plan.ending and not plan.wide:
        chance.choice(nodes).update(kind="flaky", letters=chance.choice((1, 2)))


def _renewed(plan: Plan, chance: Random) -> None:
    """The next version of a computation's code has another state format."""
    plan.renewed = chance.choice([node["name"] for node in plan.nodes if node["kind"] == "count"] or [""])


def _throttled(plan: Plan, chance: Random) -> None:
    """A process that is far ahead of the low watermark waits (8.4).

    This needs a stream on which no hold waits for the process's records. A process that advances its watermark late
    would wait for itself.
    """
    source = chance.choice(plan.sources)
    readers = [reader for reader in plan.readers if reader.stream == source["name"]]
    prompt = all(reader.by_position or source["id_slack"] >= _AN_HOUR for reader in readers)
    holding = any(node["kind"] == "batch" for node in plan.nodes if source["name"] in node["inputs"])
    if prompt and not holding and not any(reader.batched for reader in readers):
        source["skew"] = 3_000_000


def _batches(plan: Plan, chance: Random) -> None:
    """An injector sends batches of a query, and repeats old batches."""
    chance.choice(plan.readers).batched = True


def _idle(plan: Plan, chance: Random) -> None:
    """An injector is idle for a while; records that it sends after that may be late."""
    reader = chance.choice(plan.readers)
    if not reader.batched:
        at = reader.idle_at = chance.randrange(len(reader.inputs))
        reader.inputs[at:] = [replace(one, late=True) for one in reader.inputs[at:]]


def _tardy(plan: Plan, chance: Random) -> None:
    """The second process of a stream begins late. The low watermark waits for it from the beginning."""
    later = [reader for reader in plan.readers if reader.process != "r0"]
    if later:
        chance.choice(later).begins = chance.uniform(0.2, 0.6) * plan.span


def _bursts(plan: Plan, chance: Random) -> None:
    """Injectors send several records without a pause, so queues and outboxes fill up, and watermarks jump.

    A process that must not be far ahead of the low watermark would wait for its own promise.
    """
    skewed = {source["name"] for source in plan.sources if "skew" in source}
    for reader in plan.readers:
        if reader.stream not in skewed:
            reader.burst = chance.choice((4, 10, 30))


def _files(plan: Plan, chance: Random) -> None:
    """An injector reads files, is killed meanwhile, and reads them again.

    It is idle between runs, so what it sends may be late.
    """
    skewed = {source["name"] for source in plan.sources if "skew" in source}
    readers = [one for one in plan.readers if not one.batched and one.idle_at < 0 and one.stream not in skewed]
    if readers:
        reader = chance.choice(readers)
        reader.files, reader.runs = chance.choice((1, 2)), chance.choice((0, 1, 1, 2))
        reader.grows, reader.checkpoint = chance.random() < 0.4, chance.random() < 0.7
        reader.kills = chance.randint(int(reader.checkpoint), 4)
        reader.inputs = [replace(one, late=True) for one in reader.inputs]


def _spark(plan: Plan, chance: Random) -> None:
    """An injector is a Spark query.

    Its stream has no skew limit: a process that waits for the low watermark would wait for its own batch.
    """
    skewed = {source["name"] for source in plan.sources if "skew" in source}
    readers = [one for one in plan.readers if not (one.files or one.batched) and one.idle_at < 0]
    readers = [one for one in readers if one.stream not in skewed]
    if readers:
        reader = chance.choice(readers)
        reader.spark, reader.kills = True, chance.randint(2, 4)


def _late(plan: Plan, chance: Random) -> None:
    """A computation that consumes only injected records drops or diverts late ones."""
    sources = {source["name"] for source in plan.sources}
    node = chance.choice([node for node in plan.nodes if set(node["inputs"]) <= sources])
    node.update(
        late=chance.choice(("drop", "divert")), strong=True
    )  # whether a record is late may change before commit
    reader = chance.choice([reader for reader in plan.readers if reader.stream in node["inputs"]])
    for index in range(2, len(reader.inputs)):
        one = reader.inputs[index]
        if not one.late and chance.random() < 0.2:
            behind = one.timestamp - chance.randint(1_000_000, 3_000_000)
            reader.inputs[index] = replace(one, timestamp=behind, late=True)


def _loose(plan: Plan, chance: Random) -> None:
    """A computation is not exactly-once: it processes every copy of a record."""
    node = chance.choice(plan.nodes)
    if node["strong"]:
        node["exactly_once"] = False


def _cycle(plan: Plan, chance: Random) -> None:
    """A computation sends records back some times before it sends them on.

    The records return to the computation itself, or to the first one of the chain.
    """
    index = chance.randrange(len(plan.nodes))
    first = 0 if chance.random() < 0.5 and all(len(node["outputs"]) == 1 for node in plan.nodes) else index
    if any(node["kind"] not in _PER_RECORD or node["late"] for node in plan.nodes[first : index + 1]):
        return
    node, back = plan.nodes[index], f"{plan.nodes[index]['name']}-again"
    node.update(kind="loop", strong=True, arguments=[], back=[back])
    plan.nodes[first]["feedback"] = {back: chance.choice("ab")}


def _added(plan: Plan, chance: Random) -> None:
    """A new version adds a computation. Records behind the watermark at that time are late for it."""
    plan.added = {
        "name": "extra",
        "kind": chance.choice(("count", "slow", "flaky", "pass")),
        "inputs": {chance.choice([stream for node in plan.nodes for stream in node["outputs"]]): chance.choice("ab")},
        "outputs": ["y0"],
        **plain_node(),
        "belated": True,
    }


def _neighbour(plan: Plan, chance: Random) -> None:
    """A second topology reads a stream of the first one. It is cancelled and submitted again under its name."""
    produced = [stream for node in plan.nodes for stream in node["outputs"]]
    plan.neighbour = {
        "name": "other",
        "kind": chance.choice(("count", "slow", "flaky", "pass", "window", "batch")),
        "inputs": {chance.choice([*produced, *(source["name"] for source in plan.sources)]): chance.choice("ab")},
        "outputs": ["z0"],
        **plain_node(),
        "belated": True,
    }
    if plan.neighbour["kind"] in ("window", "batch"):
        plan.neighbour["arguments"] = [seconds(1)]
    plan.neighbour_lives = chance.choice((1, 2, 3))


def _ending(plan: Plan, chance: Random) -> None:
    """The topology is drained or cancelled while its input arrives."""
    plan.ending = chance.choice(("drain", "drain", "cancel"))
    plan.ends_at = chance.uniform(0.2, 1.2) * plan.span


def _returning(plan: Plan, chance: Random) -> None:
    """The topology is cancelled while its input arrives, and submitted again under its name."""
    simple = all(node["exactly_once"] and not node["late"] and node["kind"] != LIBRARY for node in plan.nodes)
    simple = simple and not any({"letters", "stops"} & node.keys() for node in plan.nodes)
    if plan.ending or plan.wide or not simple or any(one.batched or one.spark for one in plan.readers):
        return
    plan.returns_at = chance.uniform(0.2, 1.3) * plan.span
    plan.added = plan.neighbour = None
    plan.guests = plan.retired = False
    plan.renewed = ""
    if chance.random() < 0.6 and not any(one.files for one in plan.readers):
        _stays(plan, chance)


def _stays(plan: Plan, chance: Random) -> None:
    """A second topology reads a source of the one that comes back. Each life sends records with the same ids."""
    plan.stays, plan.neighbour_lives = True, 1
    plan.returns_at = chance.uniform(0.2, 0.5) * plan.span
    plan.neighbour = {
        "name": "other",
        "kind": chance.choice(("count", "slow", "flaky", "pass")),
        "inputs": {chance.choice([source["name"] for source in plan.sources]): chance.choice("ab")},
        "outputs": ["z0"],
        **plain_node(),
        "belated": True,
    }


def _settled(plan: Plan, chance: Random) -> None:
    """Owners soon drop the ids of removed computations. Deliveries of these may still arrive."""
    plan.settled = chance.choice((0.05, 0.5, 2.0))


def _brief(plan: Plan, chance: Random) -> None:
    """Windows leave no state behind."""
    for node in plan.nodes:
        if node["kind"] == "window":
            node["kind"] = "brief"


_CHANGES: Final[tuple[tuple[str, Callable[[Plan, Random], None], float], ...]] = (
    ("compact", _compact, 0.3),
    ("batches", _batches, 0.2),
    ("idle", _idle, 0.2),
    ("late", _late, 0.3),
    ("cycle", _cycle, 0.2),
    ("loose", _loose, 0.1),
    ("ending", _ending, 0.1),
    ("neighbour", _neighbour, 0.2),
    ("added", _added, 0.5),
    ("segments", _segments, 0.3),
    ("clocks", _clocks, 0.3),
    ("far", spilled_timers, 0.2),
    ("bases", _bases, 0.4),
    ("versions", _versions, 0.2),
    ("merges", _merges, 0.35),
    ("zombies", _zombies, 0.2),
    ("one way", _one_way, 0.3),
    ("islands", _islands, 0.2),
    ("balanced", _balanced, 0.2),
    ("retired", _retired, 0.3),
    ("guests", _guests, 0.15),
    ("probed", _probed, 0.15),
    ("late readers", _late_readers, 0.2),
    ("weakly", _weakly, 0.3),
    ("letters", _letters, 0.3),
    ("renewed", _renewed, 0.5),
    ("throttled", _throttled, 0.4),
    ("stops", _stops, 0.4),
    ("brief", _brief, 0.4),
    ("divided", _divided, 0.3),
    ("tight bounds", tight_bounds, 0.15),
    ("spilled and divided", spilled_and_divided, 0.15),
    ("weak timers", weak_timers, 0.15),
    ("library windows", library_windows, 0.4),
    ("tardy", _tardy, 0.5),
    ("bursts", _bursts, 0.35),
    ("files", _files, 0.35),
    ("spark", _spark, 0.3),
    ("returning", _returning, 0.75),
    ("columns", windows_by_columns, 0.4),
    ("changing forms", changing_forms, 0.2),
    ("cassandra", on_cassandra, 0.23),
    ("suspended", suspended, 0.22),
    ("embedded", embedded, 0.31),
    ("growing states", growing_states, 0.75),
    ("looked up", _looked_up, 0.3),
    ("operators", operators, 0.3),
    ("settled", _settled, 0.4),
    ("replays", replays, 0.8),
    ("source to sink", connectors, 0.13),
    ("slices", _slices, 0.3),
)
"""Name, change, and its share of all seeds."""
