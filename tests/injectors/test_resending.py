"""Copies of batches without an answer, against a naive server that is slow, silent, or reads nothing (6.1.1)."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.ids import partition_scope
from millwheel.client.injector.messages import (
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    InjectorEffect,
    InjectorEvent,
    KeyedRecords,
    Limits,
    RoutingArrived,
    SendBatch,
    Tick,
    WritesPending,
)
from millwheel.client.injector.outbound_queue import InjectedAttempt
from millwheel.client.injector.resend_policy import MAX_COPIES
from millwheel.client.injector.routing import ConsumerRouting, Route, StreamRouting
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from tests.driving import SingleCoreDriver
from tests.injectors.receivers import ACKED, FULL

SECOND = 1_000_000
LIMITS = Limits(batch_records=3, window_records=60, linger=1_000, resend_after=30 * SECOND, max_in_flight=4)
SCOPE = partition_scope("s", "p", "0")
READER = IncarnationId("c")


@dataclass
class Server:
    """Commits each id once, ``latency`` after it came. A copy of what it still processes is refused."""

    reads: bool = True
    answers: bool = True
    latency: int = 0
    unread: deque[SendBatch] = field(default_factory=deque)
    """What its connection has not written yet."""
    processing: list[tuple[int, int, int, list[int]]] = field(default_factory=list)
    """When the records of an attempt are committed, its life and token, and its other records."""
    pending: dict[int, int] = field(default_factory=dict)
    """When each id is committed."""
    committed: Counter[int] = field(default_factory=Counter)
    life: int = 0

    def due(self) -> int | None:
        """When it commits next."""
        return min(self.pending.values(), default=None)

    def read(self, now: int) -> list[DeliveryAnswered]:
        """Read everything, and commit what is due. Returns the answers that reach the injector."""
        out = self._commit(now)
        while self.reads and self.unread:
            out += self._take(self.unread.popleft(), now)
        return [*out, *self._commit(now)] if self.answers else []

    def _take(self, send: SendBatch, now: int) -> list[DeliveryAnswered]:
        ids = [int(id_) for id_ in send.ids]
        refused = [at for at, id_ in enumerate(ids) if id_ in self.pending]
        fresh = [at for at, id_ in enumerate(ids) if id_ not in self.pending and id_ not in self.committed]
        for at in fresh:
            self.pending[ids[at]] = now + self.latency
        if fresh:
            self.processing.append((now + self.latency, self.life, send.token, refused))
        out = [DeliveryAnswered((send.token,), FULL, refused)] if refused else []
        if len(refused) + len(fresh) < len(ids):
            out.append(DeliveryAnswered((send.token,), ACKED, sorted(refused + fresh)))
        return out

    def _commit(self, now: int) -> list[DeliveryAnswered]:
        done = [id_ for id_, at in self.pending.items() if at <= now]
        self.committed.update(done)
        self.pending = {id_: at for id_, at in self.pending.items() if at > now}
        ready = [one for one in self.processing if one[0] <= now]
        self.processing = [one for one in self.processing if one[0] > now]
        return [DeliveryAnswered((token,), ACKED, rest) for _, life, token, rest in ready if life == self.life]


class World(SingleCoreDriver[InjectorEvent, InjectorEffect]):
    """One injector, one connection and one server, in virtual time."""

    core: InjectorCore

    def __init__(self) -> None:
        super().__init__()
        self.core = InjectorCore("s", "p", limits=LIMITS)
        self.server = Server()
        self.next_id = 0
        self.sent: Counter[int] = Counter()
        self.reasons: Counter[int] = Counter()
        """By record: how often it was refused, or its connection lost."""
        self.first_sent: dict[int, int] = {}
        route = Route(ALL_KEYS, "j1", "a")
        self.handle(RoutingArrived(StreamRouting(1, {READER: ConsumerRouting(READER, [route], computation="c")})))
        self.handle(ConnectionOpened("a"))

    def begin(self, effect: InjectorEffect) -> None:
        if not isinstance(effect, SendBatch):
            return
        for id_ in map(int, effect.ids):
            self.sent[id_] += 1
            begun = self.now - self.first_sent.setdefault(id_, self.now)
            most = (1 + self.reasons[id_]) * (1 + MAX_COPIES) + begun // (8 * LIMITS.resend_after)
            assert self.sent[id_] <= most, "copies grow with the length of the silence"
        self.server.unread.append(effect)

    def serve(self) -> None:
        """Let the server read and answer, until it has nothing to do now."""
        while (self.server.reads and self.server.unread) or (self.server.due() or self.now + 1) <= self.now:
            for answer in self.server.read(self.now):
                before = self.core.acked
                if answer.outcome == FULL:
                    self.reasons.update(range(self.next_id))
                self.handle(answer)
                assert self.core.acked - before <= sum(self.server.committed.values()) - before
        self.check()

    def check(self) -> None:
        """The bounds of memory (G13)."""
        unread = Counter(int(id_) for send in self.server.unread for id_ in send.ids)
        assert max(unread.values(), default=0) <= 1, "a copy waits behind an attempt that is not written"
        assert self.core.unacked <= LIMITS.window_records
        for queue in self.core.outbound.queues():
            attempts = Counter(at for batch in queue.batches for one in batch.open_attempts for at in batch_ids(one))
            assert max(attempts.values(), default=0) <= MAX_COPIES + 1
            assert queue.in_flight == sum(len(batch.open_attempts) for batch in queue.batches)

    def send(self, count: int) -> None:
        count = min(count, self.core.room())
        ids = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        keys = {READER: [b"k"] * count}
        self.handle(KeyedRecords([b"v%d" % id_ for id_ in ids], [50] * count, keys, SCOPE, ids))
        self.serve()

    def reconnect(self) -> None:
        self.server.unread.clear()
        self.server.life += 1
        self.reasons.update(range(self.next_id))
        self.handle(ConnectionLost("a"))
        self.handle(ConnectionOpened("a"))
        self.serve()

    def pass_time(self, duration: int) -> None:
        end = self.now + duration
        while (at := min(self.core.next_deadline() or end + 1, self.server.due() or end + 1)) <= end:
            self.now = max(self.now, at)
            self.serve()
            if (self.core.next_deadline() or end + 1) <= self.now:
                unread = self.server.unread
                self.handle(WritesPending({"a": unread[0].token} if unread else {}))
                self.handle(Tick())
                self.serve()
        self.now = end
        self.serve()


def batch_ids(attempt: InjectedAttempt) -> list[int]:
    """The positions of an attempt's records without an answer."""
    batch = attempt.batch
    return [batch.ids[at] for at in attempt.open()]


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 12)),
    st.tuples(st.just("pass"), st.sampled_from([0, 1, 29, 31, 100, 1_000])),
    st.tuples(st.just("reads"), st.booleans()),
    st.tuples(st.just("answers"), st.booleans()),
    st.tuples(st.just("latency"), st.sampled_from([0, 1, 40, 70, 700])),
    st.tuples(st.just("reconnect"), st.just(0)),
)


@pytest.mark.guarantee("G1", section="6.1.1")
@example([("answers", 0), ("send", 3), ("pass", 4_000)])
@given(st.lists(STEPS, max_size=25))
def test_each_record_is_acked_once_and_copies_are_bounded(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in steps:
        match what:
            case "send":
                world.send(number)
            case "pass":
                world.pass_time(number * SECOND)
            case "reads":
                world.server.reads = bool(number)
            case "answers":
                world.server.answers = bool(number)
            case "latency":
                world.server.latency = number * SECOND
            case _:
                world.reconnect()
        assert world.core.acked <= world.server.committed.total(), "an ACK without a commit"
    world.server.reads = world.server.answers = True
    world.pass_time(4_000 * SECOND)
    assert (world.core.unacked, world.core.unacked_bytes) == (0, 0), "every record is ACKed in the end"
    assert world.core.acked == world.core.accepted == world.next_id, "each of them once"
    assert world.server.committed == Counter(range(world.next_id)), "and each is committed once"


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_server_slower_than_every_wait_is_not_flooded() -> None:
    """Regression: ACKs that came after two waits were ignored, and each batch was sent again for ever."""
    world = World()
    world.server.latency = 65 * SECOND
    for _ in range(40):
        world.send(12)
        world.pass_time(10 * SECOND)
    world.pass_time(200 * SECOND)
    assert world.core.unacked == 0
    assert max(world.sent.values()) <= 3, "its own attempt, and copies after 30 and 75 seconds"
