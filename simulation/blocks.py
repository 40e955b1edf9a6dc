"""The computations of simulated topologies: user code that passes records on, and watches what the system does to it.

Whatever a block does, the ids of the records that it took leave it exactly once on each of its outputs, sooner or
later. Each step is numbered by a counter in the key's state, so that the order of a key's steps shows at the sinks,
whatever crashed in between. What a hook sees that no hook may see is noted in ``SEEN``. What is known of the cluster
that decides on what may be late is in ``DIVIDED``.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Final

import msgspec

import millwheel as mw

__all__ = [
    "DIVIDED",
    "SEEN",
    "STATELESS",
    "Batch",
    "Brief",
    "Count",
    "Delay",
    "Flaky",
    "Item",
    "Pass",
    "Slow",
    "Window",
    "assemble",
    "turns",
]

_ONLY: Final = "only"

STATELESS: Final = "fires, and nothing is known of the key (G2)"
"""How a complaint ends of which an owner that was cut off is innocent while it has not heard that its computation was
cancelled: the rows are gone, and so is the journal that it would have to append to."""

SEEN: Final[list[str]] = []
"""What hooks complained of, in the present run."""

DIVIDED: Final[set[str]] = set()
"""The computations that have been in more than one interval, in the present run."""


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One hook's run that took effect: the ``number``-th of its key, at a low watermark."""

    computation: str
    key: str
    number: int
    watermark: int
    late: bool = False
    """Whether its record was late without having been injected late (G7). Judged when it took effect: what a deposed
    owner's hooks are shown goes nowhere."""


class Item(msgspec.Struct):
    """A record. ``ids``: the injected records that it stands for; ``a`` and ``b``: what consumers key it by.

    ``tainted``: one of them was injected late, so it may be late anywhere.
    """

    ids: list[int]
    a: str
    b: str
    tainted: bool = False
    steps: list[Step] = []


class Bucket(msgspec.Struct):
    """What a key has gathered under one tag."""

    ids: list[int] = []
    steps: list[Step] = []
    tainted: bool = False
    timestamp: int = mw.MIN_TIMESTAMP
    due: int = mw.MAX_TIMESTAMP
    """When its timer is to fire."""


class Numbered(msgspec.Struct):
    """A key's steps so far, as later code keeps them."""

    count: int = 0


class Gathered(msgspec.Struct):
    """A key's state: steps so far, and what waits for timers."""

    number: int = 0
    fired: int = mw.MIN_TIMESTAMP
    buckets: dict[str, Bucket] = {}


class _Block:
    """What blocks have in common."""

    def __init__(self, name: str, outputs: list[str]) -> None:
        self.name = name
        self.outputs = outputs
        self.feedback: dict[str, str] = {}
        """The streams that come back to it, with their keys."""
        self.loose = False
        """Whether what it is given may be late: duplicates, or what was there before it; and so what comes of it."""

    def complain(self, what: str) -> None:
        """Note what may not be."""
        SEEN.append(f"{self.name}: {what}")

    def emit(self, ctx: Any, item: Item, timestamp: Any = None) -> None:
        """Produce on every output."""
        for stream in self.outputs:
            ctx.produce(stream, item, timestamp=timestamp)


class Pass(_Block, mw.Computation[Item, int]):
    """Sends on what it gets: a function of its input alone, as weak productions ask for."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Send it on."""
        item = record.value
        self.emit(ctx, Item(item.ids, item.a, item.b, item.tainted or self.loose, item.steps))


class Count(_Block, mw.Computation[Item, int]):
    """Numbers the records of each key."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number it, and send it on."""
        number(self, ctx, record)


class Recount(_Block, mw.Computation[Item, Numbered]):
    """As :class:`Count`, in a later version: its states are others, and those that are stored are migrated."""

    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Numbered:
        """What :class:`Count` has stored."""
        return Numbered(stored.read(int))

    def process_record(self, ctx: mw.Context[Numbered], record: mw.Record[Item]) -> None:
        """Number it, and send it on."""
        number(self, ctx, record)


class Window(_Block, mw.Computation[Item, Gathered]):
    """Gathers each key's records by tumbling windows, and sends them on when the low watermark has passed them."""

    def __init__(self, name: str, outputs: list[str], width: int) -> None:
        super().__init__(name, outputs)
        self.width = width

    def process_record(self, ctx: mw.Context[Gathered], record: mw.Record[Item]) -> None:
        """Put it into its window."""
        for tag, bucket in ctx.state.buckets.items():
            first = next(step.watermark for step in bucket.steps if step.computation == self.name)
            if first < bucket.due <= ctx.watermark:  # one that is due when it is set may wait for its commit
                told = f"a record at {record.timestamp} of key {ctx.key} runs at watermark {ctx.watermark}"
                self.complain(f"{told}, before timer {tag} has fired (G5)")
        end = record.timestamp - record.timestamp % self.width + self.width
        gather(self, ctx, str(end), record, end)
        ctx.state.buckets[str(end)].due = end
        ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[Gathered], timer: mw.Timer) -> None:
        """The window is complete."""
        if timer.timestamp > ctx.watermark:
            self.complain(f"timer {timer} of key {ctx.key} fires at watermark {ctx.watermark} (G6)")
        check_due(self, ctx, timer)
        state = ctx.state
        bucket = state.buckets.get(timer.tag)
        if timer.timestamp < state.fired and bucket is not None and not bucket.tainted:
            self.complain(f"timer {timer} of key {ctx.key} fires after that of {state.fired} (G5)")
        state.fired = max(state.fired, timer.timestamp)
        release(self, ctx, timer)


class Brief(_Block, mw.Computation[Item, dict[str, Bucket]]):
    """As :class:`Window`, but a key without an open window has no state, as its type's default is none (4.4).

    It numbers nothing and complains of nothing. A record that it loses or repeats shows at the sinks.
    """

    def __init__(self, name: str, outputs: list[str], width: int) -> None:
        super().__init__(name, outputs)
        self.width = width

    def process_record(self, ctx: mw.Context[dict[str, Bucket]], record: mw.Record[Item]) -> None:
        """Put it into its window."""
        item = record.value
        look(self, ctx, record)
        end = record.timestamp - record.timestamp % self.width + self.width
        bucket = ctx.state.setdefault(str(end), Bucket(timestamp=end))
        bucket.ids += item.ids
        bucket.steps += item.steps
        bucket.tainted |= item.tainted or self.loose or (record.late and record.stream in self.feedback)
        ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[dict[str, Bucket]], timer: mw.Timer) -> None:
        """The window is complete."""
        bucket = ctx.state.pop(timer.tag, None)
        if bucket is not None:
            a, b = ctx.key, f"{chr(33 + sum(bucket.ids) % 90)}{len(bucket.ids)}"
            self.emit(ctx, Item(bucket.ids, a, b, bucket.tainted, bucket.steps), timer.timestamp)


class Delay(_Block, mw.Computation[Item, Gathered]):
    """Sends each record on after some wall time."""

    def __init__(self, name: str, outputs: list[str], wait: int) -> None:
        super().__init__(name, outputs)
        self.wait = wait

    def process_record(self, ctx: mw.Context[Gathered], record: mw.Record[Item]) -> None:
        """Keep it for a while."""
        tag = str(record.value.ids[0])
        gather(self, ctx, tag, record, record.timestamp)
        due = ctx.state.buckets[tag].due = ctx.now + self.wait
        ctx.set_timer(mw.Timestamp(due), tag, wall=True)

    def process_timer(self, ctx: mw.Context[Gathered], timer: mw.Timer) -> None:
        """It was kept long enough."""
        if timer.timestamp > ctx.now:
            self.complain(f"wall timer {timer} of key {ctx.key} fires at {ctx.now} (G6)")
        check_due(self, ctx, timer)
        release(self, ctx, timer)


class Batch(_Block, mw.Computation[Item, Gathered]):
    """Sends each key's records on three at a time, holding the watermark meanwhile; what is left, by a timer."""

    def __init__(self, name: str, outputs: list[str], patience: int) -> None:
        super().__init__(name, outputs)
        self.patience = patience

    def process_record(self, ctx: mw.Context[Gathered], record: mw.Record[Item]) -> None:
        """Add it to the batch at hand."""
        bucket = ctx.state.buckets.get(_ONLY)
        first = record.timestamp if bucket is None else min(bucket.timestamp, record.timestamp)
        gather(self, ctx, _ONLY, record, first)
        ctx.set_hold(mw.Timestamp(first))
        if bucket is None:
            due = ctx.state.buckets[_ONLY].due = record.timestamp + self.patience
            ctx.set_timer(mw.Timestamp(due), _ONLY)
        if len(ctx.state.buckets[_ONLY].ids) >= 3:
            ctx.cancel_timer(_ONLY)
            self._release(ctx, record.timestamp)

    def process_timer(self, ctx: mw.Context[Gathered], timer: mw.Timer) -> None:
        """No more came for long."""
        if _ONLY not in ctx.state.buckets:
            self.complain(f"timer {timer} of key {ctx.key} fires though it was cancelled (G6)")
        else:
            check_due(self, ctx, timer)
            self._release(ctx, timer.timestamp)

    def _release(self, ctx: mw.Context[Gathered], now: mw.Timestamp) -> None:
        """At the time of its first record, which was held; a hold for late ones may have come too late."""
        bucket = ctx.state.buckets[_ONLY]
        if bucket.tainted:
            bucket.timestamp = now
        release(self, ctx, mw.Timer(_ONLY, now, wall=True))
        ctx.clear_hold()


class Slow(_Block, mw.Computation[Item, int]):
    """As :class:`Count`, but waits for something outside first: other keys go on, the key's order stays."""

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Wait, number it, send it on."""
        await asyncio.sleep(0.001 * (record.value.ids[0] % 50))
        number(self, ctx, record)


class Flaky(_Block, mw.Computation[Item, int]):
    """As :class:`Count`, but fails now and then, after it has done its work: nothing of that may be left."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number it, send it on, and fail, or not."""
        number(self, ctx, record)
        if random.random() < 0.2:
            raise ValueError("this went wrong")


def look(block: _Block, ctx: Any, record: mw.Record[Item]) -> None:
    """Complain of a record that is behind the watermark and not flagged, or the other way round."""
    if record.late is not (record.timestamp < ctx.watermark):
        told = "late" if record.late else "not late"
        block.complain(f"a record at {record.timestamp} of key {ctx.key} is {told} at watermark {ctx.watermark} (G14)")


def turns(number: int) -> int:
    """How often a loop runs for an injected record."""
    return 1 + number % 3


class Loop(_Block, mw.Computation[Item, int]):
    """Numbers the records of each key, and sends each to itself some times before it sends it on."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number it, and send it round, or on."""
        before = sum(step.computation == self.name for step in record.value.steps)
        item = numbered(self, ctx, record)
        back, more = f"{self.name}-again", before + 1 < turns(item.ids[0])
        if more or before:
            # Another interval between here and there, or there, lets its watermark go on meanwhile (G7).
            item.tainted |= back not in self.feedback or self.name in DIVIDED
        if more:
            ctx.produce(back, item)
        else:
            self.emit(ctx, item)


def number(block: _Block, ctx: Any, record: mw.Record[Item]) -> None:
    """Number a key's record, and send it on."""
    block.emit(ctx, numbered(block, ctx, record))


def numbered(block: _Block, ctx: Any, record: mw.Record[Item]) -> Item:
    """A record with the next number of its key's. What comes by a feedback edge may be late."""
    item = record.value
    look(block, ctx, record)
    tainted = item.tainted or block.loose
    if isinstance(ctx.state, Numbered):
        ctx.state.count += 1
        reached = ctx.state.count
    else:
        reached = ctx.state = ctx.state + 1
    forgiven = tainted or record.stream in block.feedback
    step = Step(block.name, ctx.key, reached, ctx.watermark, record.late and not forgiven)
    return Item(item.ids, item.a, item.b, tainted, [*item.steps, step])


def gather(block: _Block, ctx: Any, tag: str, record: mw.Record[Item], timestamp: int) -> None:
    """Add a record to a key's bucket."""
    item, state = record.value, ctx.state
    look(block, ctx, record)
    tainted = item.tainted or block.loose
    forgiven = tainted or record.stream in block.feedback
    step = Step(block.name, ctx.key, state.number + 1, ctx.watermark, record.late and not forgiven)
    state.number += 1
    bucket = state.buckets.setdefault(tag, Bucket())
    bucket.ids += item.ids
    bucket.steps += [*item.steps, step]
    bucket.tainted |= tainted
    bucket.timestamp = timestamp


def check_due(block: _Block, ctx: Any, timer: mw.Timer) -> None:
    """Complain of a timer that fires for another time than it was last set to."""
    bucket = ctx.state.buckets.get(timer.tag)
    if bucket is not None and bucket.due != timer.timestamp:
        block.complain(f"timer {timer} of key {ctx.key} fires, and it was set to {bucket.due} (G6)")


def _least(timer: mw.Timer) -> int:
    """The least timestamp that a firing may produce at: a watermark timer's own."""
    return mw.MIN_TIMESTAMP if timer.wall else timer.timestamp


def release(block: _Block, ctx: Any, timer: mw.Timer) -> None:
    """Send a key's bucket on."""
    state: Gathered = ctx.state
    bucket = state.buckets.pop(timer.tag, None)
    if bucket is None:
        again = "fires a second time (G6)" if state.number else STATELESS
        block.complain(f"timer {timer} of key {ctx.key} {again}")
        return
    state.number += 1
    steps = [*bucket.steps, Step(block.name, ctx.key, state.number, ctx.watermark)]
    a, b = ctx.key, f"{chr(33 + sum(bucket.ids) % 90)}{len(bucket.ids)}"
    block.emit(ctx, Item(bucket.ids, a, b, bucket.tainted, steps), max(bucket.timestamp, _least(timer)))


_KINDS: Final[dict[str, Any]] = {
    "pass": Pass,
    "count": Count,
    "recount": Recount,
    "window": Window,
    "brief": Brief,
    "delay": Delay,
    "batch": Batch,
    "slow": Slow,
    "flaky": Flaky,
    "loop": Loop,
}


def _policy(node: dict[str, Any]) -> mw.FailurePolicy:
    """What becomes of records on which a hook fails."""
    if "letters" in node:
        return mw.dead_letter(after=node["letters"])
    return mw.stop(after=node["stops"]) if "stops" in node else mw.retry()


def assemble(text: str) -> mw.Topology:
    """The topology that a plan describes; see :mod:`simulation.plan`."""
    plan = json.loads(text)
    topology = mw.Topology(plan["name"])
    for source in plan["sources"]:
        slack = mw.Duration(source["id_slack"])
        skew = mw.Duration(source["skew"]) if "skew" in source else None
        topology.source(source["name"], Item, injectors=source["injectors"], id_slack=slack, allowed_skew=skew)
    for stream in plan.get("externals", ()):
        topology.external(stream, Item)
    for node in plan["nodes"]:
        block = _KINDS[node["kind"]](node["name"], node["outputs"], *node["arguments"])
        block.loose = not node["exactly_once"] or "belated" in node
        block.feedback = node["feedback"]
        belated = f"{node['name']}-late"
        diverted = [belated] if node["late"] == "divert" else []
        topology.add(
            block,
            name=node["name"],
            inputs={stream: mw.key(field) for stream, field in node["inputs"].items()}
            | {stream: mw.key(field, feedback=True) for stream, field in block.feedback.items()},
            outputs=dict.fromkeys([*node["outputs"], *node["back"], *diverted], Item),
            strong=node["strong"],
            exactly_once=node["exactly_once"],
            straggler_delay=mw.Duration(node["straggler"]),
            on_failure=_policy(node),
            late={"": mw.Late.PROCESS, "drop": mw.Late.DROP, "divert": mw.divert(belated)}[node["late"]],
        )
    return topology
