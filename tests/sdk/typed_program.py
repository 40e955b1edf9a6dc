"""A user's program for a strict type checker, which must report each line with ``error``."""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import connectors
from millwheel.connectors import kafka, mqtt, redis


class Query(msgspec.Struct):
    text: str


class Count(msgspec.Struct):
    count: int = 0


class Counter(mw.Computation[Query, Count]):
    def process_record(self, ctx: mw.Context[Count], record: mw.Record[Query]) -> None:
        ctx.state.count += len(record.value.text)
        ctx.set_timer(mw.Timestamp(record.timestamp + mw.seconds(1)), tag="end", hold=record.timestamp)
        ctx.produce("counts", ctx.state, timestamp=record.timestamp)
        print(ctx.state.text)  # error: attr-defined
        print(record.value.count)  # error: attr-defined
        ctx.set_timer(1.5)  # error: arg-type

    async def process_timer(self, ctx: mw.Context[Count], timer: mw.Timer) -> None:
        del ctx.state
        ctx.state = Count(3)
        ctx.state = 3  # error: assignment


class Stateless(mw.Computation[Query]):
    state_codec = None

    async def process_record(self, ctx: mw.Context[None], record: mw.Record[Query]) -> None:
        ctx.produce("queries", record.value)


class Either(mw.Computation[Query | Count, dict[str, int]]):
    state_codec = mw.Codec(lambda state: msgspec.json.encode(state), lambda data: msgspec.json.decode(data))

    def process_record(self, ctx: mw.Context[dict[str, int]], record: mw.Record[Query | Count]) -> None:
        if isinstance(record.value, Query):
            ctx.state[record.value.text] = record.value.text  # error: assignment


class Grown(mw.GrowingState):
    total: int = 0
    texts: mw.ListState[str]
    counts: mw.MapState[str, int]
    words: mw.CounterState[str]
    seen: mw.SetState[int]
    times: mw.OrderedState[Count]
    ending: mw.ExpiringMapState[str, int]


def counted(times: int) -> Count:
    return Count()


class GrownLater(mw.GrowingState):
    total: int = 0
    counts: mw.MapState[str, Count] = mw.migrated(counted)
    seen: mw.Dropped


class GrowingLater(mw.Computation[Query, GrownLater]):
    state_version = 2

    def migrate(self, stored: mw.StoredState) -> GrownLater:
        return stored.read(GrownLater)

    def process_record(self, ctx: mw.Context[GrownLater], record: mw.Record[Query]) -> None:
        count: Count = ctx.state.counts[record.value.text]
        ctx.state.counts["x"] = 5  # error: assignment
        ctx.state.seen.add(count)  # error: attr-defined


class Growing(mw.Computation[Query, Grown]):
    def process_record(self, ctx: mw.Context[Grown], record: mw.Record[Query]) -> None:
        state = ctx.state
        state.texts.append(record.value.text, keep=5)
        first: str = state.texts[0]
        some: list[str] = state.texts[1:3]
        state.counts[first] = state.counts.get(first, 0) + len(some)
        total: int = state.words.add(first) + state.words["x"] + state.total
        state.seen |= {total}
        state.times.add(record.timestamp, Count())
        latest: list[tuple[mw.Timestamp, Count]] = state.times.pop_until(record.timestamp)
        state.ending.put(first, total, ends=state.ending.next_end() or record.timestamp)
        ended: list[tuple[str, int]] = state.ending.expire(record.timestamp, limit=5)
        state.ending[first] = total  # error: index
        state.ending.put(first, ended, record.timestamp)  # error: arg-type
        state.texts.append(latest)  # error: arg-type
        state.counts[3] = 3  # error: index
        state.seen.add("x")  # error: arg-type
        state.times.add(Count(), record.timestamp)  # error: arg-type # error: arg-type
        state.texts = ["x"]  # error: assignment
        state.total += state.missing  # error: attr-defined


class WrongState(mw.Computation[Query, Count]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Query]) -> None: ...  # error: override


class WrongCodec(mw.Computation[Query, Count]):
    state_codec = mw.Codec[int](lambda state: b"", lambda data: 3)  # error: assignment

    def process_record(self, ctx: mw.Context[Count], record: mw.Record[Query]) -> None: ...


topology = mw.Topology("typed")
topology.source("queries", Query | None, id_slack=mw.hours(2), injectors=["one"], retention=mw.Retention(bytes=1))
topology.stream("counts", Count, codec=mw.Codec[Count](lambda value: b"", lambda data: Count()))
topology.add(Counter, inputs={"queries": mw.key("text", "user.id")}, outputs=["counts"], on_failure=mw.stop(after=2))
topology.add(
    Either(), inputs={"counts": mw.key(lambda value: value.count)}, outputs={"x": int | str}, late=mw.Late.DROP
)
topology.add(Counter, inputs={"queries": "text"})  # error: dict-item
topology.add(Query, inputs={"queries": mw.key("text")})  # error: arg-type
topology.add(Counter, inputs={}, late="drop")  # error: arg-type
mw.key()  # error: call-overload
mw.key(3)  # error: call-overload
mw.Retention(mw.hours(1))  # error: call-arg
problems: list[mw.Problem] = topology.validate()

Event = Query | Count
topology.source("events", Query | Count).map(lambda event: event.text)  # error: union-attr
topology.source("named", Event).filter(lambda event: event.count > 3)  # error: union-attr
topology.stream("optional", Query | None).map(lambda query: query.text)  # error: union-attr
theirs: mw.Stream[Event] = topology.external("other/events", Event)
sales = topology.source("sales", Event, connectors.read_log("other/events", Query | Count))
sales.map(lambda event: event.text)  # error: union-attr
files: mw.Stream[Event] = topology.source("files", Event, connectors.read_files("/events/*.jsonl", Event))
topic: mw.Stream[Event] = topology.source("topic", Event, kafka.source("events", Event, brokers="b:9092"))
entries: mw.Stream[Event] = topology.source("entries", Event, redis.source("events", Event, server="redis://r"))
messages = topology.source("messages", Event, mqtt.source("events", Event, server="mqtt://m", client="c"))
messages.map(lambda event: event.count)  # error: union-attr
