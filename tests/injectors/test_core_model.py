"""The injector's core against workers that lose, refuse, repeat, move, split and die (5.2, 6.1.1)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, assert_never

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.driver import SenderIdentity
from millwheel.client.injector.ids import IdHasher, IdKind, IdScope, partition_scope
from millwheel.client.injector.messages import (
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    Disconnect,
    EndDeclared,
    InjectorEffect,
    InjectorEvent,
    KeyedRecords,
    KeysFound,
    Limits,
    PublishWatermark,
    RoutingArrived,
    SendBatch,
    Tick,
    WatermarkDeclared,
)
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.routing_follower import routing_from_wire
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.deliveries import decode_delivery
from millwheel.rpc.v1 import control_pb2
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from tests.driving import SingleCoreDriver
from tests.injectors.receivers import NOT_OWNER, Consumer

LIMITS = Limits(
    batch_records=4, batch_bytes=64, window_records=40, window_bytes=400, linger=5,
    retry_first=10, retry_last=80, resend_after=1_000, max_in_flight=3,
)  # fmt: skip
MAX_ROWS = 9
"""More than fit into a batch: columns are not divided for that, and may be sent one by one later."""
MAX_JOINED = LIMITS.batch_records - 1 + MAX_ROWS
"""A batch of columns that is not full takes one more table."""
ADDRESSES = ["a", "b", "c"]
NO_COLUMNS_AT = "c"
NO_COLUMNS = DeliveryOutcome.DELIVERY_OUTCOME_NO_COLUMNS
OPAQUE = IdScope(IdKind.OPAQUE)
SCOPES = [partition_scope("s", "p", "0"), partition_scope("s", "p", "1"), OPAQUE, IdScope(IdKind.BATCH, "q", 1)]
HASHER = IdHasher("s", "p")

KEYS = [b"", b"a", b"b", b"c", b"cc", b"d", b"e"]
keys = st.sampled_from(KEYS)


class InjectorMachine(RuleBasedStateMachine, SingleCoreDriver[InjectorEvent, InjectorEffect]):
    """The network is a list of attempts and a list of answers. The rules lose, repeat and reorder them."""

    core: InjectorCore

    @initialize()
    def start(self) -> None:
        self.core = InjectorCore("s", "p", limits=LIMITS)
        self.now = 0
        self.revision = 1
        self.consumers = {"x": Consumer("x", "a"), "y": Consumer("y", "b")}
        self.known_consumers = set(self.consumers)
        self.gone: list[Consumer] = []
        self.network: list[SendBatch] = []
        self.identity = SenderIdentity("s", "p", 1, publishes=True)
        self.answers: list[tuple[str, int, DeliveryAnswered]] = []
        self.columns = 0
        """Deliveries by columns so far."""
        self.tables: dict[tuple[IdScope, object], int] = {}
        """The number of the table of each record that came in one."""
        self.joined = 0
        """Deliveries with records of several tables so far."""
        self.complete = 0
        """Complete deliveries so far."""
        self.wanted: set[str] = set()
        self.up: dict[str, int] = {}
        """Connected addresses, and the life of each connection."""
        self.lives = 0
        self.positions = dict.fromkeys(SCOPES, 0)
        self.accepted: list[tuple[IdScope, object, dict[IncarnationId, bytes], bytes, int, frozenset[str], bool]] = []
        self.last_published: int = MIN_TIMESTAMP
        self.reported: int = MIN_TIMESTAMP
        self.bytes_of: dict[tuple[str, object], tuple[bytes, bytes, int]] = {}
        self.handle(RoutingArrived(self.routing()))
        self.connect()

    def routing(self) -> StreamRouting:
        consumers = [one.route() for one in self.consumers.values()]
        return routing_from_wire(
            control_pb2.WatchRoutingResponse(revision=self.revision, consumers=consumers, position_ranges=True)
        )

    def begin(self, effect: InjectorEffect) -> None:
        match effect:
            case Connect(address):
                self.wanted.add(address)
            case Disconnect(address):
                self.wanted.discard(address)
                self.close_connection(address)
            case SendBatch():
                assert effect.address in self.up, "sent without a connection"
                self.check_same_bytes(effect)
                self.check_complete(effect)
                self.network.append(effect)
            case PublishWatermark(published):
                assert published.watermark >= self.reported, "a reported watermark never falls"
                self.reported = published.watermark
            case _:
                assert_never(effect)

    def check_same_bytes(self, send: SendBatch) -> None:
        self.columns += isinstance(send.values, RecordColumns)
        numbers = {self.tables.get((send.scope, id_)) for id_ in send.ids}
        self.joined += isinstance(send.values, RecordColumns) and len(numbers) > 1
        assert 0 < len(send.keys) <= MAX_JOINED
        for id_, key, value, timestamp in zip(send.ids, send.keys, send.values, send.timestamps, strict=True):
            known = self.bytes_of.setdefault((f"{send.consumer} {send.scope.name}", id_), (key, value, timestamp))
            assert known == (key, value, timestamp), "an id came again with other bytes"

    def check_complete(self, send: SendBatch) -> None:
        """What a complete delivery states is true: all that is due between its positions is in it, or committed."""
        consumer = self.consumers.get(send.consumer)
        if not send.complete or consumer is None or send.journal not in consumer.receivers:
            return
        self.complete += 1
        between, keys = range(send.ids[0], send.ids[-1] + 1), consumer.receivers[send.journal].interval
        there = [row for row in self.accepted if row[0] == send.scope and row[1] in between]
        assert len(there) == len(between), "no record was accepted at a position between"
        due = {(row[1], row[3]) for row in there if send.consumer in row[2] and row[2][send.consumer] in keys}
        done = {(row[0], row[2]) for row in consumer.committed()}
        assert due - done <= set(zip(send.ids, send.values, strict=True)), "a record that is due was left out"

    def close_connection(self, address: str) -> None:
        self.up.pop(address, None)
        self.network = [send for send in self.network if send.address != address]
        self.answers = [answer for answer in self.answers if answer[0] != address]

    # The user.

    def earliest(self) -> int:
        """Times of records are about this one."""
        base = self.core.publication.declared
        return max(0, base) if base > MIN_TIMESTAMP else 0

    def next_positions(self, scope: IdScope, count: int, gap: int) -> range:
        """Positions of so many records, ``gap`` behind those of the scope before."""
        first = self.positions[scope] + gap
        self.positions[scope] = first + count
        return range(first, first + count)

    @rule(
        scope=st.sampled_from(SCOPES),
        rows=st.lists(st.tuples(keys, keys, st.integers(-3, 40)), min_size=1, max_size=9),
        gap=st.integers(0, 3),
        size=st.sampled_from([1, 8, 70]),
        keyless=st.sampled_from(["", "", "", "x", "y", "z"]),
    )
    def send(
        self, scope: IdScope, rows: list[tuple[bytes, bytes, int]], gap: int, size: int, keyless: str = ""
    ) -> None:
        """``keyless``: the consumer at which the later half of the records has no key yet."""
        rows = rows[: self.core.room()]
        if not rows:
            return
        names, start = sorted(self.known_consumers), self.earliest()
        numbers = list(self.next_positions(scope, len(rows), gap))
        ids: list[int] | list[bytes] = numbers if scope.kind is IdKind.POSITION else HASHER.hash_all(numbers)
        values = [f"{scope.name}:{number}:".encode().ljust(size, b".") for number in numbers]
        timestamps = [start + offset for _, _, offset in rows]
        self.last_published = self.core.published.watermark
        columns = {IncarnationId(name): [row[0] if name == "x" else row[1] for row in rows] for name in names}
        for at in range(len(rows)):
            late = timestamps[at] < self.last_published
            due = {name: column[at] for name, column in columns.items()}
            self.accepted.append((scope, ids[at], due, values[at], timestamps[at], frozenset(names), late))
        if (waiting := IncarnationId(keyless)) in columns:
            columns[waiting] = columns[waiting][: len(rows) // 2]
        self.handle(KeyedRecords(values, timestamps, columns, scope, ids))

    @rule(
        scope=st.sampled_from(SCOPES),
        rows=st.lists(st.tuples(keys, keys, st.integers(-3, 40)), min_size=1, max_size=MAX_ROWS),
        gap=st.integers(0, 1),
        more=st.booleans(),
    )
    def send_table(self, scope: IdScope, rows: list[tuple[bytes, bytes, int]], gap: int, more: bool = False) -> None:
        """Send records as columns, with a column of keys for each consumer. ``more``: they have one more column."""
        rows = rows[: self.core.room()]
        if not rows:
            return
        names, start = sorted(self.known_consumers), self.earliest()
        numbers = self.next_positions(scope, len(rows), gap)
        ids = numbers if scope.kind is IdKind.POSITION else HASHER.hash_all(numbers)
        texts = [row[0].decode() for row in rows], [row[1].decode() for row in rows]
        columns_of = {"x": texts[0], "y": texts[1], "at": [f"{scope.name}:{one}" for one in numbers]}
        batch = pa.record_batch(columns_of | ({"more": list(numbers)} if more else {}))
        self.tables |= dict.fromkeys(((scope, id_) for id_ in ids), len(self.tables))
        records = RecordColumns(batch, array("q", [start + offset for _, _, offset in rows]))
        self.last_published = self.core.published.watermark
        columns = {IncarnationId(name): records.keyed("x" if name == "x" else "y").keys() for name in names}
        for at, (id_, value) in enumerate(zip(ids, records, strict=True)):
            stamp = records.timestamps[at]
            due = {name: column[at] for name, column in columns.items()}
            late = stamp < self.last_published
            self.accepted.append((scope, id_, due, value, stamp, frozenset(names), late))
        self.handle(KeyedRecords(records, records.timestamps, columns, scope, ids))

    @rule(pick=st.integers(0, 99), count=st.integers(0, 12))
    def key(self, pick: int, count: int) -> None:
        """The keys of some waiting records become known."""
        heads = self.core.unkeyed.heads(20)
        if heads:
            head = heads[pick % len(heads)]
            known = {(scope, id_): due for scope, id_, due, *_ in self.accepted}
            keys = [known[head.scope, row.id][head.consumer] for row in head.records[:count]]
            self.handle(KeysFound(head, keys, "not yet"))

    @rule(step=st.integers(0, 30))
    def advance(self, step: int) -> None:
        self.handle(WatermarkDeclared(max(0, self.core.publication.declared) + step))

    @rule()
    def broadcast(self) -> None:
        """Receivers forget the opaque ids that the published watermark has passed."""
        value = self.core.published.watermark
        for consumer in self.consumers.values():
            for receiver in consumer.receivers.values():
                receiver.dedup.learn("injector/s", [("injector/s/p", 1)])
                receiver.dedup.advance("injector/s", value, 0)

    # The network.

    def refuse_or_deliver(self, send: SendBatch, refuse: int) -> None:
        consumer = self.consumers.get(send.consumer)
        life = self.up[send.address]
        if consumer is None or consumer.owners.get(send.journal) != send.address:
            self.answers.append((send.address, life, DeliveryAnswered((send.token,), NOT_OWNER, [], "")))
            return
        if isinstance(send.values, RecordColumns) and send.address == NO_COLUMNS_AT:
            self.answers.append((send.address, life, DeliveryAnswered((send.token,), NO_COLUMNS, [], "")))
            return
        delivery = decode_delivery(self.identity.request(send), send.address)
        for _, outcome, indexes in consumer.receive(delivery, refuse):
            self.answers.append((send.address, life, DeliveryAnswered((send.token,), outcome, indexes, "")))

    @rule(pick=st.integers(0, 99), refuse=st.sampled_from([0, 0, 0, 1, 2, 9]), again=st.booleans())
    def arrive(self, pick: int, refuse: int, again: bool) -> None:
        if self.network:
            index = pick % len(self.network)
            send = self.network[index] if again else self.network.pop(index)
            self.refuse_or_deliver(send, refuse)

    @rule(pick=st.integers(0, 99))
    def vanish(self, pick: int) -> None:
        """Lose a batch or an answer."""
        if self.network and pick % 2:
            self.network.pop(pick % len(self.network))
        elif self.answers:
            self.answers.pop(pick % len(self.answers))

    @rule(rounds=st.integers(1, 4), most=st.integers(1, 9))
    def flow(self, rounds: int, most: int) -> None:
        """Deliver, commit and answer without faults for some rounds."""
        for _ in range(rounds):
            self.connect()
            for send in self.network[:4]:
                self.network.remove(send)
                self.refuse_or_deliver(send, 0)
            for pick in range(sum(len(one.receivers) for one in self.consumers.values())):
                self.commit(pick, most)
            for _ in self.answers[:6]:
                self.answer(0, False)
            self.now += 2
            self.handle(Tick())

    @rule(pick=st.integers(0, 99), most=st.integers(1, 6))
    def commit(self, pick: int, most: int) -> None:
        places = [(one, journal) for one in self.consumers.values() for journal in one.receivers]
        consumer, journal = places[pick % len(places)]
        for delivery, outcome, indexes in consumer.commit_some(journal, most):
            if (address := delivery.channel) in self.up:
                answer = DeliveryAnswered((delivery.token,), outcome, indexes, "")
                self.answers.append((address, self.up[address], answer))

    @rule(pick=st.integers(0, 99), again=st.booleans())
    def answer(self, pick: int, again: bool) -> None:
        if self.answers:
            index = pick % len(self.answers)
            _, _, answer = self.answers[index] if again else self.answers.pop(index)
            self.handle(answer)

    @rule(address=st.sampled_from(ADDRESSES))
    def break_connection(self, address: str) -> None:
        if address in self.up:
            self.close_connection(address)
            self.handle(ConnectionLost(address))

    @rule()
    def connect(self) -> None:
        for address in sorted(self.wanted - self.up.keys()):
            self.lives += 1
            self.up[address] = self.lives
            self.handle(ConnectionOpened(address))

    @rule(step=st.sampled_from([1, 5, 20, 100, 2_000]))
    def tick(self, step: int) -> None:
        self.now += step
        self.handle(Tick())

    # The cluster. It changes first; the injector learns of it later.

    @rule(pick=st.integers(0, 99), owner=st.sampled_from([*ADDRESSES, ""]))
    def move(self, pick: int, owner: str) -> None:
        places = [(one, journal) for one in self.consumers.values() for journal in one.receivers]
        consumer, journal = places[pick % len(places)]
        consumer.move(journal, owner)

    @rule(pick=st.integers(0, 99), at=st.sampled_from([b"b", b"c", b"d"]), owner=st.sampled_from(ADDRESSES))
    def split(self, pick: int, at: bytes, owner: str) -> None:
        places = [(one, journal) for one in self.consumers.values() for journal in one.receivers]
        consumer, journal = places[pick % len(places)]
        consumer.halve(journal, at, owner)

    @rule()
    def routed(self) -> None:
        self.revision += 1
        self.known_consumers = set(self.consumers)
        self.handle(RoutingArrived(self.routing()))

    @rule(owner=st.sampled_from(ADDRESSES))
    def join_or_leave(self, owner: str) -> None:
        if "z" in self.consumers:
            self.gone.append(self.consumers.pop("z"))
        elif not any(one.name == "z" for one in self.gone):
            self.consumers["z"] = Consumer("z", owner)
        self.routed()

    # Invariants.

    def missing(self, name: str) -> list[tuple[object, int, bool]]:
        """The records that a consumer must still commit."""
        done = {(row[0], row[2]) for row in self.consumers[name].committed()}
        return [
            (id_, timestamp, late)
            for _, id_, _, value, timestamp, names, late in self.accepted
            if name in names and (id_, value) not in done
        ]

    @invariant()
    def watermark_holds(self) -> None:
        if not hasattr(self, "core"):
            return
        value = self.core.published.watermark
        assert value >= self.last_published, "G7: the watermark went back"
        self.last_published = value
        for name in self.known_consumers & self.consumers.keys():
            for _, timestamp, late in self.missing(name):
                assert late or value <= timestamp, "G7: the watermark passed a record that has not arrived"

    @invariant()
    def window_is_bounded(self) -> None:
        if hasattr(self, "core"):
            assert self.core.unacked <= LIMITS.window_records, "G13: the window overflowed"

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for consumer in self.consumers.values():
            for journal, owner in list(consumer.owners.items()):
                if not owner:
                    consumer.move(journal, "a")
        self.routed()
        for _ in range(400):
            if not self.core.unacked:
                break
            self.key(0, 20)
            self.connect()
            while self.network:
                self.refuse_or_deliver(self.network.pop(0), 0)
            for pick in range(sum(len(one.receivers) for one in self.consumers.values())):
                self.commit(pick, 1_000)
            while self.answers:
                self.answer(0, False)
            alarm = self.core.next_deadline()
            self.now = max(self.now, alarm if alarm is not None else self.now)
            self.handle(Tick())
        self.check_end()

    def check_end(self) -> None:
        assert self.core.unacked == 0, "liveness: a healed cluster has not ACKed everything"
        assert self.core.unacked_bytes == 0
        assert self.core.flushed(self.core.accepted)
        for name, consumer in self.consumers.items():
            assert not self.missing(name), "G1: an ACKed record took no effect"
            took = Counter((row[0], row[2]) for row in consumer.committed())
            assert all(count == 1 for count in took.values()), "G1: a record took effect twice"
        declared = self.core.publication.declared
        assert self.core.published.watermark == declared, "G8: the watermark did not catch up"
        self.handle(EndDeclared())
        assert self.core.published.watermark == MAX_TIMESTAMP
        for scope in SCOPES[:2]:
            if any(one[0] == scope for one in self.accepted):
                assert self.core.acknowledged(scope) == self.positions[scope]


TestInjectorCore = InjectorMachine.TestCase
TestInjectorCore.settings = settings(max_examples=40, stateful_step_count=50, suppress_health_check=list(HealthCheck))


def _walk(seed: int, steps: int) -> None:
    """The same machine in longer runs than hypothesis makes: random steps, mostly without faults."""
    chance = Random(seed)
    machine: Any = InjectorMachine()
    machine.start()

    def rows() -> list[tuple[bytes, bytes, int]]:
        return [(chance.choice(KEYS), chance.choice(KEYS), chance.randint(-3, 40)) for _ in range(chance.randint(1, 9))]

    def pick() -> int:
        return chance.randrange(100)

    def address() -> str:
        return chance.choice(ADDRESSES)

    def lost() -> str:
        return chance.choice([*[""] * 9, "x", "y", "z"])

    def small_tables() -> None:
        scope = chance.choice(SCOPES)
        for _ in range(5):
            machine.send_table(scope, rows()[:2], pick() // 90, pick() < 10)

    moves: list[tuple[float, Callable[[], object]]] = [
        (8, lambda: machine.send(chance.choice(SCOPES), rows(), pick() % 3, chance.choice([1, 8, 70]), lost())),
        (2, lambda: machine.send_table(chance.choice(SCOPES), rows(), pick() % 2, pick() < 20)),
        (3, small_tables),
        (4, lambda: machine.key(pick(), chance.randrange(12))),
        (2, lambda: machine.advance(chance.randrange(30))),
        (4, lambda: machine.broadcast()),
        (6, lambda: machine.arrive(pick(), chance.choice([0, 0, 0, 1, 2, 9]), chance.random() < 0.3)),
        (1, lambda: machine.vanish(pick())),
        (6, lambda: machine.commit(pick(), chance.randint(1, 6))),
        (6, lambda: machine.answer(pick(), chance.random() < 0.2)),
        (6, lambda: machine.flow(chance.randint(1, 4), chance.randint(1, 9))),
        (1, lambda: machine.break_connection(address())),
        (3, lambda: machine.connect()),
        (3, lambda: machine.tick(chance.choice([1, 5, 20, 100, 2_000]))),
        (1, lambda: machine.move(pick(), chance.choice([*ADDRESSES * 2, ""]))),
        (0.3, lambda: machine.split(pick(), chance.choice([b"b", b"c", b"d"]), address())),
        (4, lambda: machine.routed()),
        (0.1, lambda: machine.join_or_leave(address())),
    ]  # fmt: skip
    for step in range(steps):
        chance.choices([act for _, act in moves], [weight for weight, _ in moves])[0]()
        machine.window_is_bounded()
        if step % 8 == 0:
            machine.watermark_holds()
    machine.teardown()
    assert machine.complete, "no delivery was complete"
    assert machine.columns, "no delivery had columns"
    assert machine.joined, "no delivery had several tables"


@pytest.mark.guarantee("G1", "G7", section="5.2")
@pytest.mark.parametrize("seed", range(16))
def test_every_record_arrives_once_and_holds_the_watermark(seed: int) -> None:
    _walk(seed, 2_500)
