"""One interval core between tight bounds: senders keep what is not ACKed, and sinks are full most of the time.

The core, the store's contract, the sinks' order of arrival and all that is delayed, lost or repeated are those of the
hostile world. What must come out is known from the records alone.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import Acknowledge, CheckSequence, Delivery, SendDelivery, SequenceChecked
from tests.interval.tight_peers import Again, Sink, Taking, Upstream
from tests.interval.tight_programs import Work, outputs_of, timer_outputs_of, topology
from tests.interval.world import INJECTOR, World

__all__ = ["TightWorld"]

AHEAD = 15
"""How far ahead of its record a timer is set, at most."""


class TightWorld(World):
    """A core with bounds of one to three of everything. ``seed`` decides what happens."""

    def __init__(self, kind: str, seed: int, *, late: bool) -> None:
        self.random = random = Random(seed)
        self.kind = kind
        self.late = late
        self.calm = False
        self.crashes = 0
        self.newest = 0
        self.expected: dict[str, int | None] = {}
        """By name: the timestamp of a production; None: it may have another, as its cause was late."""
        self.pending: dict[str, int] = {}
        """What holds the watermark: on-time productions that have not come out."""
        self.sinks = {f"sink:{stream}": Sink(self) for stream in ("out", "other")}
        self.upstreams: list[Upstream] = []
        super().__init__(topology(kind), {}, _bounds(random))
        (self.journal,) = self.current
        self.upstreams += [Upstream(self, number, ordered) for number, ordered in enumerate((False, True, True))]
        self._names = 0

    # The model.

    def expect(self, work: Work, stamp: int, *, late: bool) -> None:
        """A record is sent: this is what it will have made in the end."""
        self.newest = max(self.newest, stamp)
        made = {name: stamp for _, name in outputs_of(work.name, work.records)}
        if work.ahead is not None:
            made |= {name: stamp if work.holds else stamp + work.ahead for _, name in timer_outputs_of(work.name)}
        if late:
            self.expected |= dict.fromkeys(made)
        else:
            self.expected |= made
            self.pending |= made

    def take_out(self, delivery: Delivery) -> None:
        before = len(self.out)
        super().take_out(delivery)
        for _, made, _ in self.out[before:]:
            self.pending.pop(made.name, None)

    def publish(self) -> None:
        """The senders' common watermark is broadcast."""
        self._tell(INJECTOR, min(one.publish() for one in self.upstreams))

    def _tell(self, computation: str, value: int) -> None:
        if computation == "mapper" and self.pending:
            name, stamp = min(self.pending.items(), key=lambda one: one[1])
            assert value <= stamp, f"the watermark is {value}, and {name} of {stamp} has not come out"
        super()._tell(computation, value)

    # The network.

    def perform(self, index: int, *, lose: bool = False, repeat: bool = False) -> None:
        task = self.tasks[index]
        what = task.what
        if isinstance(what, Again):
            del self.tasks[index]
            what.upstream.send_again(what.batch)
        elif isinstance(what, CheckSequence):
            del self.tasks[index]
            assert task.owner is not None
            self.handle(task.owner, SequenceChecked(what.sequence, True))
        elif isinstance(what, SendDelivery | Acknowledge) and isinstance(what.delivery.channel, Upstream):
            if repeat and isinstance(what, SendDelivery) and self._reaches_zombie(task):
                return
            if not repeat:
                del self.tasks[index]
            self._pass_on(what, what.delivery.channel, lose=lose)
        else:
            super().perform(index, lose=lose, repeat=repeat)
        if self.calm:
            for sink in self.sinks.values():
                sink.acknowledge(at_once=True)

    def _pass_on(self, what: SendDelivery | Acknowledge, upstream: Upstream, *, lose: bool) -> None:
        if lose:
            upstream.refused(what.delivery.token)
        elif isinstance(what, Acknowledge):
            upstream.answered(what)
        else:
            self.handle(self.current[self.journal], replace(what.delivery))

    def _sink(self, delivery: Delivery) -> None:
        self.sinks[delivery.consumer].arrive(delivery)

    def resend_injected(self) -> None:
        for one in self.upstreams:
            one.begin()

    # What happens.

    def step(self) -> None:
        random, what = self.random, self.random.random()
        if what < 0.10:
            self._add(random.choice(self.upstreams))
        elif what < 0.16:
            upstream = random.choice(self.upstreams)
            upstream.declared = max(0, upstream.declared) + random.randint(1, 12)
            self.publish()
        elif what < 0.22:
            self.now += random.randint(1, 12)
            self.ring()
        elif what < 0.30:
            random.choice(list(self.sinks.values())).taking = random.choice([*Taking, Taking.HOLDERS, Taking.HOLDERS])
        elif what < 0.40:
            random.choice(list(self.sinks.values())).acknowledge(at_once=False)
        elif what < 0.41:
            self._take_over()
        elif self.tasks:
            at = 0 if random.random() < 0.5 else random.randrange(len(self.tasks))
            chance = random.random()
            self.perform(at, lose=chance < 0.05, repeat=chance > 0.97)

    def _take_over(self) -> None:
        self.crashes += 1
        self.crash(self.journal, zombie=self.random.random() < 0.5)

    def _add(self, upstream: Upstream) -> None:
        random = self.random
        works: list[tuple[Work, int]] = []
        for _ in range(random.choice((1, 2, 3, 3))):
            self._names += 1
            stamp = max(0, upstream.declared) + random.randint(0, 20) - (random.randint(0, 40) if self.late else 0)
            ahead = None if self.kind == "passing" or random.random() < 0.5 else random.randint(0, AHEAD)
            # A late record can hold nothing.
            holds = ahead is not None and stamp >= upstream.watermark and random.random() < 0.4
            records, flaky = random.choice((0, 1, 1, 1, 2, 4)), random.random() < 0.08
            works.append((Work(f"w{self._names}", random.choice("ab"), records, ahead, holds, flaky), max(0, stamp)))
        upstream.add(works)

    def rest(self, taking: Taking, declared: int | None = None) -> None:
        """For a while nothing fails, and the sinks take that: all that may go on has to come to its end (G8).

        ``declared``: the senders say first that nothing below comes any more; None: what they have said stands. While
        sinks take nothing but what holds the watermark it is above all there is, or that could not end.
        """
        if self.random.random() < 0.85:
            self._take_over()
        self.calm = True
        for sink in self.sinks.values():
            sink.taking = taking
            sink.acknowledge(at_once=True)
        if declared is not None:
            for one in self.upstreams:
                one.declared = max(one.declared, declared)
            self.publish()
        self.settle(100_000)
        self.calm = False
        self._check_rest()

    def rest_somehow(self) -> None:
        """Rest, while sinks take everything or what holds the watermark."""
        if self.random.random() < 0.2:
            self.rest(Taking.ALL)
        else:
            self.rest(Taking.HOLDERS, self.newest + AHEAD + 1)

    def _check_rest(self) -> None:
        state = self.current[self.journal].core.state
        assert [one.batches for one in self.upstreams] == [[], [], []]
        assert (state.intake.records, state.outbox.unacked.records) == (0, 0)
        declared = min(one.declared for one in self.upstreams)
        assert (self.broadcast[INJECTOR], state.watermark) == (declared, declared), "nothing holds the watermark"
        if not self.late:
            assert state.holds.output == min([declared, *self.pending.values()]), "nothing but timers and holds does"


def _bounds(random: Random) -> IntervalSettings:
    return IntervalSettings(
        batch_records=random.choice((1, 1, 2, 3)),
        batch_bytes=random.choice((200, 2_000)),
        queue_records=random.randint(1, 3),
        outbox_records=random.choice((1, 1, 2, 3)),
        cache_bytes=random.choice((0, 1_000)),
        flush_interval=random.choice((0, 7)),
        flush_rows=random.randint(1, 3),
        flush_apart=7,
        checkpoint_entries=random.randint(1, 3),
        entry_bytes=random.choice((300, 10_000)),
        timer_part=random.randint(1, 3),
        timers_kept=random.randint(1, 3),
        timer_lead=3,
        async_hooks=random.randint(1, 3),
    )
