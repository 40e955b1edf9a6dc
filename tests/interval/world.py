"""A small hostile world around real interval cores. It delays, loses, repeats and reorders all that may be.

Everything that a core asks for is a task that the test performs when it likes, in any order that it likes.
Owners die at any instant, with their appends applied or not, or live on as zombies beside their
successors. Intervals are split and merged; opening one takes several steps of the store's. Consumers outside take what
they like. The store is the contract's memory implementation, and the authority is the real core. Network, master and
injector are models.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.watermarks import AcceptRefusedError
from millwheel.sdk.compiled import compile_computation, consumers_of
from millwheel.sdk.context import OutputBinding
from millwheel.sdk.topology import Topology
from millwheel.store.contract import StoreError
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import perform_at_store, result_of
from millwheel.worker.admission import ArrivalOrder
from millwheel.worker.dedup import PositionIds
from millwheel.worker.interval import IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.lookups import Admission
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Acknowledged,
    AppendEntry,
    AsyncHook,
    CatalogChanged,
    CheckSequence,
    Delivery,
    Deposed,
    FenceJournal,
    FlushStates,
    GiveUp,
    Halted,
    HookFailed,
    HookFinished,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
    OwnerEffect,
    Parent,
    PartsMissing,
    ReadSegments,
    Refused,
    ReleasePrepared,
    Report,
    Resend,
    SendDelivery,
    SenderWatermarks,
    SequenceChecked,
    Started,
    StoreEffect,
    Tick,
    WriteParts,
)
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.shell.opening import Opener
from tests.authority.shard import Shard
from tests.interval.injector import INJECTOR, WorldInjector

__all__ = ["SMALL", "Owner", "Taking", "Task", "World"]

BACKOFF = 5
"""Until what is refused is sent again."""
SMALL = IntervalSettings(
    batch_records=3,
    batch_bytes=2_000,
    queue_records=12,
    outbox_records=10,
    cache_bytes=1_000,
    flush_interval=7,
    checkpoint_entries=4,
    entry_bytes=300,
    timer_part=2,
    timers_kept=2,
    timer_lead=3,
    async_hooks=2,
)


ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
DEPOSED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


class Taking(Enum):
    """What consumers outside of the topology take."""

    ALL = "everything"
    HOLDERS = "what holds the watermark, as a consumer that is full"
    NOTHING = "nothing"


@dataclass(eq=False)
class Owner:
    """One owner of one interval; dead, its tasks may still be performed, without notice."""

    journal: str
    core: IntervalCore
    dead: bool = False

    @property
    def sequencer(self) -> int:
        return self.core.state.config.sequencer


@dataclass(eq=False)
class Opening:
    """A journal is being opened, step by step of the store's."""

    coroutine: Any


@dataclass(frozen=True)
class Released:
    """Word on its way to the master: a child has let go."""

    journal: str


class Stepping:
    """Passes calls on to ``store``, each after a pause of its caller, for all that may happen meanwhile."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._store, name)

        async def paused(*arguments: Any) -> Any:
            await _pause()
            return await call(*arguments)

        return paused


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


@dataclass(eq=False)
class Task:
    """Something to be performed for an owner (None: the injector), some time."""

    owner: Owner | None
    what: Any


class World:
    """Cores, store, authority, network, injector, and a master that keeps its rules.

    A child that has not let go of its parents is neither split nor merged.
    """

    def __init__(
        self,
        topology: Topology,
        cuts: dict[str, list[str]],
        settings: IntervalSettings = SMALL,
        *,
        on_time: bool = False,
    ) -> None:
        """``on_time``: no record is injected late, so none may come out late."""
        self.topology = topology
        self.settings = settings
        self.on_time = on_time
        self.store = MemoryStore()
        self.authority = Shard()
        self.now = 1_000
        self.tasks: list[Task] = []
        self.later: list[tuple[int, Task]] = []
        """What is refused is sent again in a while."""
        self.current: dict[str, Owner] = {}
        self.zombies: list[Owner] = []
        self.slots: dict[str, list[tuple[KeyInterval, str]]] = {}
        self.parents: dict[str, list[Parent]] = {}
        """Of children that have not let go."""
        self.out: list[tuple[str, Any, int]] = []
        self.taking = Taking.ALL
        self.sinks = defaultdict[str, ArrivalOrder](lambda: ArrivalOrder(self._admit))
        self._sunk: set[Any] = set()
        self._sequencer = 0
        self._journals = 10  # what a name ends in is larger than what its parents' names end in
        self.broadcast: dict[str, int] = {INJECTOR: MIN_TIMESTAMP}
        self.injector = WorldInjector(self)
        for name in topology.plan().computations:
            points = [cut.encode() for cut in cuts.get(name, [])]
            ranges = [KeyInterval(a, b) for a, b in zip([b"", *points], [*points, None], strict=True)]
            self.slots[name] = [(keys, f"{name}/{number}") for number, keys in enumerate(ranges)]
            for keys, journal in self.slots[name]:
                result_of(self.store.create_journal(journal))
                self.start(name, keys, journal)

    # Owners.

    def start(self, name: str, keys: KeyInterval, journal: str) -> Owner:
        """A new owner, with the largest sequencer so far."""
        self._sequencer += 1
        owner = Owner(journal, self.core(name, keys, journal, self._sequencer))
        self.current[journal] = owner
        self.tasks += [Task(owner, effect) for effect in owner.core.step(Started(), self.now)]
        self.tasks.append(Task(owner, self._watermarks(self.broadcast)))
        return owner

    def core(self, name: str, keys: KeyInterval, journal: str, sequencer: int) -> IntervalCore:
        program = compile_computation(self.topology, name)
        senders = frozenset({INJECTOR} if name == "mapper" else {"mapper"})
        outputs = {
            stream: OutputBinding(stream, encode, self._route(stream)) for stream, encode in program.outputs.items()
        }
        config = IntervalConfig(
            name,
            journal,
            keys,
            sequencer,
            senders,
            {},
            settings=self.settings,
            parents=tuple(self.parents.get(journal, ())),
        )
        return IntervalCore(config, program, outputs, self.locate)

    def _route(self, stream: str) -> Callable[[Any], tuple[tuple[str, bytes], ...]]:
        consumers = consumers_of(self.topology, stream)
        if not consumers:
            return lambda value: ((f"sink:{stream}", b""),)
        return lambda value: tuple((name, extract(value)) for name, extract in consumers)

    def locate(self, consumer: str, key: bytes) -> str:
        if consumer.startswith("sink:"):
            return consumer
        return next(journal for keys, journal in self.slots[consumer] if key in keys)

    def crash(self, journal: str, *, zombie: bool) -> None:
        """The owner dies (its tasks may still be performed), or goes on, not knowing; a successor starts."""
        self.end(self.current[journal], zombie=zombie)
        name = journal.partition("/")[0]
        keys = next(keys for keys, one in self.slots[name] if one == journal)
        self.start(name, keys, journal)
        self.disconnected(journal)

    def end(self, owner: Owner, *, zombie: bool) -> None:
        """The owner dies, or goes on without knowing that it is none any more."""
        if zombie:
            self.zombies.append(owner)
            return
        owner.dead = True
        for task in self.tasks:
            if task.owner is owner and isinstance(task.what, AsyncHook | Opening):
                task.what.coroutine.close()
        self.tasks = [task for task in self.tasks if task.owner is not owner or _outlives(task.what)]

    def disconnected(self, journal: str) -> None:
        """Senders notice that a connection broke, and send again what was not answered."""
        fresh = self.current.get(journal)
        for other in [*self.current.values(), *self.zombies]:
            if other is not fresh:
                self.tasks.append(Task(other, Resend(None)))
        self.injector.resend()

    def handle(self, owner: Owner, event: Any) -> None:
        if owner.dead:
            return
        self.tasks += [Task(owner, effect) for effect in owner.core.step(event, self.now)]
        owner.core.check_invariants()
        if owner.core.phase is OwnerPhase.LOST and owner is self.current.get(owner.journal):
            raise AssertionError(f"{owner.journal} was lost by its current owner")
        if owner.journal in self.parents and owner.core.independent:
            released = Released(owner.journal)
            if all(task.what != released for task in self.tasks):
                self.tasks.append(Task(None, released))

    # Splits and merges.

    def split(self, name: str, at: bytes, *, zombie: bool) -> bool:
        """Cut the interval of ``at`` in two there, if that may be done; whether it was."""
        slots = self.slots[name]
        index = next(number for number, (keys, _) in enumerate(slots) if at in keys)
        keys, journal = slots[index]
        if at == keys.start or journal in self.parents:
            return False
        parents = [Parent(journal, keys)]
        self._replace(name, index, 1, list(keys.split(at)), parents, zombie=zombie)
        return True

    def merge(self, name: str, which: int, *, zombie: bool) -> bool:
        """Make one interval of two neighbours, if that may be done; whether it was."""
        slots = self.slots[name]
        if len(slots) < 2:
            return False
        index = which % (len(slots) - 1)
        (low, first), (high, second) = slots[index : index + 2]
        if first in self.parents or second in self.parents:
            return False
        parents = [Parent(first, low), Parent(second, high)]
        self._replace(name, index, 2, [KeyInterval(low.start, high.end)], parents, zombie=zombie)
        return True

    def _replace(
        self, name: str, index: int, count: int, ranges: list[KeyInterval], parents: list[Parent], *, zombie: bool
    ) -> None:
        """One transaction of the master's: these intervals are no more, those are there."""
        fresh: list[tuple[KeyInterval, str]] = []
        for keys in ranges:
            self._journals += 1
            fresh.append((keys, f"{name}/c{self._journals}"))
        self.slots[name][index : index + count] = fresh
        for parent in parents:
            self.end(self.current.pop(parent.journal), zombie=zombie)
        for keys, journal in fresh:
            self.parents[journal] = list(parents)
            self.start(name, keys, journal)
        for _, journal in fresh:
            self.disconnected(journal)

    def _released(self, child: str) -> None:
        """The master drops the parents of a child that has let go; every worker gets to know, some time."""
        gone = self.parents.pop(child, [])
        named = {parent.journal for parents in self.parents.values() for parent in parents}
        for parent in gone:
            if parent.journal not in named:
                result_of(self.store.drop_journal(parent.journal))
                for owner in self.current.values():
                    senders = owner.core.state.config.senders
                    self.tasks.append(Task(owner, CatalogChanged(senders, retired=frozenset({parent.journal}))))

    # Watermarks, and the injector.

    def send_injected(self, deliveries: Sequence[Delivery]) -> None:
        """The injector's deliveries are on their way."""
        self.tasks += [Task(None, SendDelivery(one)) for one in deliveries]

    def broadcast_value(self, computation: str, value: int) -> None:
        """A watermark reaches everybody, some time, if it is new."""
        if value > self.broadcast.get(computation, MIN_TIMESTAMP):
            self.broadcast[computation] = value
            for owner in [*self.current.values(), *self.zombies]:
                self.tasks.append(Task(owner, self._watermarks({computation: value})))

    def _watermarks(self, values: dict[str, int]) -> SenderWatermarks:
        accepted = [one for one in self.authority.accepted if one[0] in values]
        sequencers = {name: [(keys, sequencer) for of, keys, sequencer in accepted if of == name] for name in values}
        return SenderWatermarks(dict(values), sequencers)

    # Performing.

    def perform(self, index: int, *, lose: bool = False, repeat: bool = False) -> None:
        """Perform one task. Messages may be lost (their senders notice) or repeated, calls of the store may not."""
        task = self.tasks[index]
        message = isinstance(task.what, SendDelivery | Acknowledge)
        if not (repeat and message):
            del self.tasks[index]
        if lose and message:
            self._lost(task)
        elif repeat and isinstance(task.what, SendDelivery) and self._reaches_zombie(task):
            return
        elif isinstance(task.what, IntervalEvent):
            if task.owner is not None:
                self.handle(task.owner, task.what)
        elif isinstance(task.what, Released):
            self._released(task.what.journal)
        else:
            self.perform_effect(task.owner, task.what)

    def perform_effect(self, owner: Owner | None, effect: IntervalEffect | Opening) -> None:
        """Do what a core asked for, or the injector (``owner`` None)."""
        if isinstance(effect, SendDelivery):
            self._send(owner, effect)
        elif isinstance(effect, Acknowledge):
            self._acknowledge(effect)
        else:
            assert owner is not None, f"the injector has no core that says {effect!r:.200}"
            self._perform_for(owner, effect)

    def _perform_for(self, owner: Owner, effect: Any) -> None:
        match effect:
            case Opening():
                self._open(owner, effect)
            case AcceptSequencer():
                self._accept(owner, effect)
            case CheckSequence():
                self._check(owner, effect)
            case Report():
                self._report(effect)
            case AsyncHook():
                self._hook(owner, effect)
            case GiveUp():
                self.tasks.append(Task(owner, Deposed(effect.reason)))
            case HookFailed() | HooksSlow() | ReleasePrepared():
                """No part of this world uses these."""
            case _:
                self._perform_at_store(owner, effect)

    def _perform_at_store(self, owner: Owner, effect: StoreEffect) -> None:
        """As the store does; of several parts one, and then the others: anything may come between any two."""
        try:
            if isinstance(effect, FenceJournal):
                opener = Opener(Stepping(self.store), effect, lambda call: call(), {})  # type: ignore[arg-type]
                self._open(owner, Opening(opener.open()))
                return
            if isinstance(effect, WriteParts) and len(effect.parts) > 1:
                (part, blob), *others = effect.parts.items()
                perform_at_store(self.store, replace(effect, parts={part: blob}))
                self.tasks.append(Task(owner, replace(effect, parts=dict(others))))
                return
            answer = perform_at_store(self.store, effect)
        except StoreError as error:
            if isinstance(effect, ReadSegments) and owner is self.current.get(owner.journal):
                self.tasks.append(Task(owner, PartsMissing(effect.parts, effect.journal, str(error))))
            else:
                self._gone(owner, error)
        else:
            if answer is not None:
                self.tasks.append(Task(owner, answer))

    def _lost(self, task: Task) -> None:
        if isinstance(task.what, SendDelivery):
            if task.owner is None:
                self.tasks.append(Task(None, task.what))
            else:
                self.tasks.append(Task(task.owner, Resend([task.what.delivery.token])))
        else:
            self._refuse(task.what.delivery)

    def _refuse(self, delivery: Delivery, indexes: Sequence[int] = (), *, full: bool = False) -> None:
        """The sender will send it again, or these records of it: its own copy, as it then stands."""
        if delivery.channel is not None:
            refused = {delivery.token: indexes} if indexes else {}
            if not indexes:
                self.tasks.append(Task(delivery.channel, Halted(delivery.token)))
            again = Resend([delivery.token], refused, [delivery.token] if full else [])
            self.later.append((self.now + BACKOFF, Task(delivery.channel, again)))
        elif delivery.token in self.injector.unacked:
            whole = SendDelivery(self.injector.unacked[delivery.token])
            self.later.append((self.now + BACKOFF, Task(None, whole)))

    def _send(self, owner: Owner | None, one: SendDelivery) -> None:
        delivery = replace(one.delivery, channel=owner)
        if owner is None:
            delivery = self.injector.as_sent_now(delivery)
        if delivery.consumer.startswith("sink:"):
            out: list[OwnerEffect] = []
            self.sinks[delivery.consumer].arrived(delivery, out)
            self.tasks += [Task(None, one) for one in out]
            return
        receiver = self.current.get(delivery.journal)
        if receiver is not None:
            self.handle(receiver, delivery)
        elif owner is None:
            self.injector.reroute(delivery)
        else:
            self._refuse(delivery)

    def _reaches_zombie(self, task: Task) -> bool:
        """A copy goes to an owner that has a successor, if there is one. No answer of it arrives."""
        for zombie in self.zombies:
            if zombie.journal == task.what.delivery.journal:
                self.handle(zombie, replace(task.what.delivery, channel=task.owner or task.what.delivery.channel))
                return True
        return False

    def _admit(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        assert delivery.order is not None
        holds = delivery.order.pending <= self.broadcast.get(delivery.sender.computation, MIN_TIMESTAMP)
        if self.taking is Taking.ALL or (self.taking is Taking.HOLDERS and holds):
            self._take_out(delivery)
            out.append(Acknowledge(delivery, ACKED))
            return Admission.TAKEN
        out.append(Acknowledge(delivery, FULL))
        return Admission.REFUSED

    def _take_out(self, delivery: Delivery) -> None:
        """What has come out of the topology, each record once."""
        ids = delivery.ids
        watermark = self.broadcast.get(delivery.sender.computation, MIN_TIMESTAMP)
        for index, value in enumerate(delivery.values):
            name = (ids.sequence, ids.positions[index]) if isinstance(ids, PositionIds) else ids.ids[index]
            if name not in self._sunk:
                self._sunk.add(name)
                codec = self.topology.plan().streams[delivery.stream].codec
                assert codec is not None
                stamp = delivery.timestamps[index]
                assert stamp >= watermark or not self.on_time, f"{value!r} of {stamp} comes out at {watermark}"
                self.out.append((delivery.stream, codec.decode(value), stamp))

    def _acknowledge(self, one: Acknowledge) -> None:
        delivery, outcome = one.delivery, one.outcome
        if outcome == DEPOSED:
            if delivery.channel is not None:
                self.tasks.append(Task(delivery.channel, Refused(delivery.token, one.message)))
        elif outcome != ACKED:
            full = outcome == FULL
            assert full or outcome == DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER, one
            self._refuse(delivery, one.remaining, full=full and not one.remaining)
        elif delivery.channel is not None:
            self.tasks.append(Task(delivery.channel, Acknowledged(delivery.token, one.remaining)))
        elif not one.remaining:
            self.injector.acknowledged(delivery.token)

    def _open(self, owner: Owner, one: Opening) -> None:
        try:
            one.coroutine.send(None)
        except StopIteration as stop:
            self.tasks.append(Task(owner, stop.value))
        except StoreError as error:
            # A zombie may find that its journal, or its parents', are no more.
            self._gone(owner, error)
        else:
            self.tasks.append(Task(owner, one))

    def _accept(self, owner: Owner, one: AcceptSequencer) -> None:
        try:
            value = self.authority.accept(one.keys, one.sequencer, one.computation)
        except AcceptRefusedError as error:
            self.tasks.append(Task(owner, Deposed(str(error))))
        else:
            self.tasks.append(Task(owner, Accepted(value)))

    def _report(self, one: Report) -> None:
        self.authority.say(one.keys, one.sequencer, one.output, one.computation)
        self.authority.flush()
        self.broadcast_value(one.computation, self.authority.known(one.computation))

    def _hook(self, owner: Owner, one: AsyncHook) -> None:
        error: BaseException | None = None
        try:
            one.coroutine.send(None)
        except StopIteration:
            pass
        except Exception as raised:
            error = raised
        else:
            self.tasks.append(Task(owner, one))
            return
        self.tasks.append(Task(owner, HookFinished(one.hook, error)))

    def _gone(self, owner: Owner, error: StoreError) -> None:
        """A journal was taken or dropped: only those who do not own it any more may meet that."""
        assert owner is not self.current.get(owner.journal), error
        self.tasks.append(Task(owner, Deposed(str(error))))

    def _check(self, owner: Owner, one: CheckSequence) -> None:
        named = {parent.journal for parents in self.parents.values() for parent in parents}
        lives = one.sequence in named or any(one.sequence == journal for _, journal in self.everything())
        self.tasks.append(Task(owner, SequenceChecked(one.sequence, lives)))

    def everything(self) -> list[tuple[KeyInterval, str]]:
        """Every interval."""
        return [slot for slots in self.slots.values() for slot in slots]

    # Time, and the end.

    def ring(self) -> None:
        """Owners whose alarm is due get a tick. Refused batches are sent again."""
        self.tasks += [task for at, task in self.later if at <= self.now]
        self.later = [(at, task) for at, task in self.later if at > self.now]
        for owner in [*self.current.values(), *self.zombies]:
            at = owner.core.next_deadline()
            if at is not None and at <= self.now and not owner.dead:
                self.handle(owner, Tick())

    def settle(self, limit: int = 20_000) -> None:
        """Everything heals: perform what there is, in order, and let time pass, until nothing is left to do."""
        for _ in range(limit):
            if self.tasks:
                self.perform(0)
                continue
            owners = [owner for owner in [*self.current.values(), *self.zombies] if not owner.dead]
            alarms = [at for owner in owners if (at := owner.core.next_deadline()) is not None]
            alarms += [at for at, _ in self.later]
            if not alarms:
                return
            self.now = max(self.now + 1, min(alarms))
            self.ring()
        raise AssertionError(f"not quiet after {limit} steps: {self.tasks[:5]}")


def _outlives(what: Any) -> bool:
    """Whether a task of a dead owner may still be on its way: writes, and messages that have left."""
    return isinstance(what, AppendEntry | FlushStates | WriteParts | SendDelivery | Acknowledge | Report)
