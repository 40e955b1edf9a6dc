"""A small hostile world around real interval cores. It delays, loses, repeats and reorders all that may be.

Everything that a core asks for is a task that the test performs when it likes, in any order that it likes.
Owners die at any instant, with their appends applied or not, or live on as zombies beside their
successors. Intervals are split and merged; opening one takes several steps of the store's. The store is the
contract's memory implementation; authority, network and injector are models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.sdk.compiled import compile_computation, consumers_of
from millwheel.sdk.context import OutputBinding
from millwheel.sdk.topology import Topology
from millwheel.store.contract import CorruptValueError, JournalMissingError, SequencerRefusedError, StoreError
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Acknowledged,
    Appended,
    AppendEntry,
    AsyncHook,
    CheckSequence,
    CopyParts,
    DeleteEntries,
    DeleteParts,
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
    Parent,
    PartsMissing,
    PartsRead,
    PartsWritten,
    ReadSegments,
    ReadStates,
    Refused,
    ReleasePrepared,
    Report,
    Resend,
    SendDelivery,
    SenderWatermarks,
    SequenceChecked,
    Started,
    StatesFlushed,
    StatesRead,
    StoreEffect,
    Tick,
    WriteParts,
)
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.shell.opening import Opener
from tests.interval.shares import Shares
from tests.interval.stepping import Stepping, certain

__all__ = ["INJECTOR", "SMALL", "Owner", "Task", "World", "now_of"]

INJECTOR = "injector/events"
PROCESS = "injector/events/p"
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


def now_of(coroutine: Any) -> Any:
    """The result of a coroutine that does not wait, as the memory store's."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store waited")


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


@dataclass(eq=False)
class Task:
    """Something to be performed for an owner (None: the injector), some time."""

    owner: Owner | None
    what: Any


class World:
    """Cores, store, authority, network and injector. ``pick`` chooses among n possibilities."""

    def __init__(self, topology: Topology, cuts: dict[str, list[str]], settings: IntervalSettings = SMALL) -> None:
        self.topology = topology
        self.settings = settings
        self.store = MemoryStore()
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
        self._sunk: set[Any] = set()
        self._sequencer = 0
        self.shares: dict[str, Shares] = {}
        self.broadcast: dict[str, int] = {INJECTOR: MIN_TIMESTAMP}
        self.declared: int = MIN_TIMESTAMP
        self.unacked: dict[int, Delivery] = {}
        self._position = 0
        self.sent: list[Delivery] = []
        for name in topology.plan().computations:
            points = [cut.encode() for cut in cuts.get(name, [])]
            ranges = [KeyInterval(a, b) for a, b in zip([b"", *points], [*points, None], strict=True)]
            self.slots[name] = [(keys, f"{name}/{number}") for number, keys in enumerate(ranges)]
            self.shares[name] = Shares()
            for keys, journal in self.slots[name]:
                now_of(self.store.create_journal(journal))
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
        self.resend_injected()

    def handle(self, owner: Owner, event: Any) -> None:
        if owner.dead:
            return
        self.tasks += [Task(owner, effect) for effect in owner.core.step(event, self.now)]
        owner.core.check_invariants()
        if owner.core.phase is OwnerPhase.LOST and owner is self.current.get(owner.journal):
            raise AssertionError(f"{owner.journal} was lost by its current owner")

    # The injector.

    def inject(self, records: list[tuple[Any, int]]) -> None:
        """Records that go out together; one delivery for each interval concerned."""
        deliveries: dict[str, Delivery] = {}
        codec = self.topology.plan().streams["events"].codec
        assert codec is not None
        ((_, extract),) = consumers_of(self.topology, "events")
        for value, stamp in records:
            key = extract(value)
            journal = self.locate("mapper", key)
            self._position += 1
            ids = PositionIds(PROCESS, 0, [])
            sender = Sender(PROCESS, 1, None, INJECTOR, self.broadcast[INJECTOR])
            one = deliveries.setdefault(
                journal, Delivery("mapper", journal, "events", sender, ids, [], [], [], self._position)
            )
            one.ids.positions.append(self._position)  # type: ignore[union-attr]
            one.keys.append(key)
            one.values.append(codec.checked(value))
            one.timestamps.append(stamp)
        for delivery in deliveries.values():
            self.unacked[delivery.token] = delivery
            self.sent.append(delivery)
            self.tasks.append(Task(None, SendDelivery(delivery)))

    def resend_injected(self) -> None:
        self.tasks += [Task(None, SendDelivery(delivery)) for delivery in self.unacked.values()]

    def advance(self, to: int) -> None:
        """The injector declares a watermark; what is not ACKed holds it."""
        self.declared = max(self.declared, to)
        self._inject_watermark()

    def _inject_watermark(self) -> None:
        pending = [min(one.timestamps) for one in self.unacked.values()]
        self._tell(INJECTOR, min([self.declared, *pending]))

    def _tell(self, computation: str, value: int) -> None:
        if value > self.broadcast.get(computation, MIN_TIMESTAMP):
            self.broadcast[computation] = value
            for owner in [*self.current.values(), *self.zombies]:
                self.tasks.append(Task(owner, self._watermarks({computation: value})))

    def _watermarks(self, values: dict[str, int]) -> SenderWatermarks:
        sequencers = {name: shares.sequencers() for name, shares in self.shares.items() if name in values}
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
        elif isinstance(task.what, SendDelivery):
            self._send(task.owner, task.what)
        elif isinstance(task.what, Acknowledge):
            self._acknowledge(task.what)
        elif isinstance(task.what, Opening):
            self._open(_owner_of(task), task.what)
        else:
            self._perform(_owner_of(task), task.what)

    def _perform(self, owner: Owner, effect: IntervalEffect) -> None:
        match effect:
            case SendDelivery():
                self._send(owner, effect)
            case Acknowledge():
                self._acknowledge(effect)
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
        match effect:
            case FenceJournal():
                self._fence(owner, effect)
            case AppendEntry():
                self._append(owner, effect)
            case CopyParts():
                self._copy_parts(owner, effect)
            case FlushStates():
                self._flush(owner, effect)
            case WriteParts():
                self._write_parts(owner, effect)
            case ReadStates():
                self._read_states(owner, effect)
            case ReadSegments():
                self._read_parts(owner, effect)
            case DeleteEntries():
                now_of(self.store.delete_entries(effect.journal, effect.below))
            case DeleteParts():
                now_of(self.store.delete_parts(effect.journal, effect.parts))
            case _:
                assert_never(effect)

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
        elif delivery.token in self.unacked:
            self.later.append((self.now + BACKOFF, Task(None, SendDelivery(self.unacked[delivery.token]))))

    def _send(self, owner: Owner | None, one: SendDelivery) -> None:
        delivery = replace(one.delivery, channel=owner)
        if owner is None:
            mark = min(min(other.ids.positions) for other in [delivery, *self.unacked.values()])  # type: ignore[union-attr]
            sender = replace(delivery.sender, watermark=self.broadcast[INJECTOR])
            ids = PositionIds(PROCESS, mark, delivery.ids.positions)  # type: ignore[union-attr]
            delivery = replace(delivery, ids=ids, sender=sender)
        if delivery.consumer.startswith("sink:"):
            self._sink(delivery)
            return
        receiver = self.current.get(delivery.journal)
        if receiver is not None:
            self.handle(receiver, delivery)
        elif owner is None:
            self._reroute(delivery)
        else:
            self._refuse(delivery)

    def _reroute(self, delivery: Delivery) -> None:
        """The injector learns that the journal is gone: it sends the records to who owns their keys now."""
        if self.unacked.pop(delivery.token, None) is None:
            return
        parts: dict[str, list[int]] = {}
        for index, key in enumerate(delivery.keys):
            parts.setdefault(self.locate("mapper", key), []).append(index)
        for journal, indexes in parts.items():
            self._position += 1
            columns = (delivery.keys, delivery.values, delivery.timestamps)
            keys, values, stamps = ([column[index] for index in indexes] for column in columns)
            positions = [delivery.ids.positions[index] for index in indexes]  # type: ignore[union-attr]
            part = replace(delivery, journal=journal, keys=keys, values=values, timestamps=stamps)  # type: ignore[arg-type]
            part = replace(part, token=self._position, ids=PositionIds(PROCESS, 0, positions))
            self.unacked[part.token] = part
            self.tasks.append(Task(None, SendDelivery(part)))

    def _reaches_zombie(self, task: Task) -> bool:
        """A copy goes to an owner that has a successor, if there is one. No answer of it arrives."""
        for zombie in self.zombies:
            if zombie.journal == task.what.delivery.journal:
                self.handle(zombie, replace(task.what.delivery, channel=task.owner or task.what.delivery.channel))
                return True
        return False

    def _sink(self, delivery: Delivery) -> None:
        self.take_out(delivery)
        self.tasks.append(Task(delivery.channel, Acknowledged(delivery.token)))

    def take_out(self, delivery: Delivery) -> None:
        """What has come out of the topology, each record once."""
        ids = delivery.ids
        for index, value in enumerate(delivery.values):
            name = (ids.sequence, ids.positions[index]) if isinstance(ids, PositionIds) else ids.ids[index]
            if name not in self._sunk:
                self._sunk.add(name)
                codec = self.topology.plan().streams[delivery.stream].codec
                assert codec is not None
                self.out.append((delivery.stream, codec.decode(value), delivery.timestamps[index]))

    def _acknowledge(self, one: Acknowledge) -> None:
        delivery, outcome = one.delivery, one.outcome
        if outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER:
            if delivery.channel is not None:
                self.tasks.append(Task(delivery.channel, Refused(delivery.token, one.message)))
        elif outcome != DeliveryOutcome.DELIVERY_OUTCOME_ACKED:
            full = outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
            assert full or outcome == DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER, one
            self._refuse(delivery, one.remaining, full=full and not one.remaining)
        elif delivery.channel is not None:
            self.tasks.append(Task(delivery.channel, Acknowledged(delivery.token, one.remaining)))
        elif not one.remaining:
            self.unacked.pop(delivery.token, None)
            self._inject_watermark()

    def _fence(self, owner: Owner, one: FenceJournal) -> None:
        opener = Opener(Stepping(self.store), one, certain, {})  # type: ignore[arg-type]
        self._open(owner, Opening(opener.open()))

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
        value = self.shares[one.computation].accept(one.keys, one.sequencer)
        if value is None:
            self.tasks.append(Task(owner, Deposed("the authority knows a successor")))
        else:
            self.tasks.append(Task(owner, Accepted(value)))

    def _append(self, owner: Owner, one: AppendEntry) -> None:
        try:
            now_of(self.store.append(one.journal, one.append))
        except (SequencerRefusedError, JournalMissingError) as error:
            self.tasks.append(Task(owner, Deposed(str(error))))
        else:
            self.tasks.append(Task(owner, Appended(one.append.commit)))

    def _report(self, one: Report) -> None:
        shares = self.shares[one.computation]
        shares.report(one.keys, one.sequencer, one.output)
        self._tell(one.computation, shares.value)

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

    def _flush(self, owner: Owner, one: FlushStates) -> None:
        now_of(self.store.write_states(one.computation, one.journal, one.sequencer, one.rows))
        self.tasks.append(Task(owner, StatesFlushed(one.number)))

    def _write_parts(self, owner: Owner, one: WriteParts) -> None:
        """One part, and then the others: a crash, or a successor, may come between any two."""
        if one.parts:
            part, *others = one.parts
            try:
                now_of(self.store.write_part(one.journal, part, one.parts[part]))
            except JournalMissingError as error:
                self._gone(owner, error)
                return
            rest = {other: one.parts[other] for other in others}
            if rest:
                self.tasks.append(Task(owner, replace(one, parts=rest)))
                return
        self.tasks.append(Task(owner, PartsWritten(one.number)))

    def _gone(self, owner: Owner, error: StoreError) -> None:
        """A journal was taken or dropped: only those who do not own it any more may meet that."""
        assert owner is not self.current.get(owner.journal), error
        self.tasks.append(Task(owner, Deposed(str(error))))

    def _copy_parts(self, owner: Owner, one: CopyParts) -> None:
        try:
            for journal, part, copy in one.copies:
                now_of(self.store.write_part(one.journal, copy, now_of(self.store.read_parts(journal, [part]))[0]))
        except StoreError as error:
            self._gone(owner, error)
        else:
            self.tasks.append(Task(owner, PartsWritten(one.number)))

    def _read_states(self, owner: Owner, one: ReadStates) -> None:
        self.tasks.append(Task(owner, StatesRead(one.keys, now_of(self.store.read_states(one.computation, one.keys)))))

    def _read_parts(self, owner: Owner, one: ReadSegments) -> None:
        try:
            blobs = [now_of(self.store.read_parts(one.elsewhere.get(p, one.journal), [p]))[0] for p in one.parts]
        except (CorruptValueError, JournalMissingError) as error:
            if owner is not self.current.get(owner.journal):
                # Its successor has let go of them.
                self._gone(owner, error)
                return
            self.tasks.append(Task(owner, PartsMissing(one.parts, one.journal, str(error))))
        else:
            self.tasks.append(Task(owner, PartsRead(dict(zip(one.parts, blobs, strict=True)))))

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


def _owner_of(task: Task) -> Owner:
    assert task.owner is not None, f"the injector has no core that says {task.what!r:.200}"
    return task.owner
