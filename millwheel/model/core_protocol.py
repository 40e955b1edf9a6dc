"""How every core is driven: one protocol for the interval, the stream log, the injector, the authority and the master.

A *core* makes decisions. It opens no socket, reads no clock and starts no task. A *driver* brings it events, one at a
time, and performs the effects that it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

__all__ = ["Core", "InvariantError", "RisingValues", "Tick", "require"]

EventT_contra = TypeVar("EventT_contra", contravariant=True)
EffectT_co = TypeVar("EffectT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed. This event belongs to every core."""


class Core(Protocol[EventT_contra, EffectT_co]):
    """A pure state machine. Each core has a union of event types and a union of effect types.

    The rules for a driver:

    - It calls ``step`` with one event after the other, never from within another ``step``.
    - It performs every returned effect, in order. Each effect names the event that answers it, if one does.
    - It matches the effects exhaustively and ends with ``assert_never``. Then the type checker finds a driver that does
      not know an effect, and an unknown effect is an error at run time.
    - It asks for ``next_deadline`` after each step, and brings a ``Tick`` at that time if no event came before.

    Properties and methods that begin with neither are queries: they change nothing that an effect could depend on.

    This drives one key interval by hand, on the memory store. One record goes in, and one comes out:

    >>> import msgspec
    >>> import millwheel as mw
    >>> from millwheel.model.incarnation import new_incarnation
    >>> from millwheel.model.keys import ALL_KEYS
    >>> from millwheel.sdk.compiled import compile_computation
    >>> from millwheel.sdk.scope import OutputBinding
    >>> from millwheel.store.memory import MemoryStore
    >>> from millwheel.testing.store_effects import perform_at_store, result_of
    >>> from millwheel.worker import messages as m
    >>> from millwheel.worker.dedup import PositionIds, Sender
    >>> from millwheel.worker.interval import IntervalConfig, IntervalCore

    >>> class Upper(mw.Computation[str, None]):
    ...     def process_record(self, ctx: mw.Context[None], record: mw.Record[str]) -> None:
    ...         ctx.produce("out", record.value.upper())
    >>> topology = mw.Topology("example")
    >>> words = topology.source("words", str)
    >>> made = topology.add(Upper(), name="upper", inputs={"words": mw.key(lambda word: word)}, outputs={"out": str})
    >>> program = compile_computation(topology, "upper")
    >>> outputs = {"out": OutputBinding("out", program.outputs["out"], lambda value: (("log.out", b""),))}
    >>> upper = new_incarnation("upper", 1)
    >>> config = IntervalConfig(upper, "upper.1.j1", ALL_KEYS, sequencer=1, groups=frozenset({"injector/words"}))
    >>> core = IntervalCore(config, program, outputs, locate=lambda consumer, key: consumer)
    >>> store = MemoryStore()
    >>> result_of(store.create_journal("upper.1.j1"))

    >>> def drive(event, now):
    ...     waiting = [event]
    ...     while waiting:
    ...         for effect in core.step(waiting.pop(0), now):
    ...             if isinstance(effect, m.StoreEffect):
    ...                 answer = perform_at_store(store, effect)
    ...             elif isinstance(effect, m.AcceptSequencer):
    ...                 answer = m.Accepted(watermark=0)
    ...             else:
    ...                 answer = None  # a real driver knows every effect
    ...                 print(type(effect).__name__)
    ...             waiting += [answer] if answer is not None else []
    ...         core.check_invariants()

    >>> drive(m.Started(), now=1_000)
    Report
    >>> sender = Sender("injector/words/p", 1, None, "injector/words")
    >>> ids, values = PositionIds("words/p", 0, [0]), [msgspec.msgpack.encode("flu")]
    >>> drive(m.Delivery("upper.1", "upper.1.j1", "words", sender, ids, [b"flu"], values, [50]), now=2_000)
    AnswerDelivery
    SendDelivery
    >>> drive(m.GroupWatermarks({"injector/words": 60}), now=3_000)  # the production holds the watermark at 50
    Report
    >>> drive(m.Acknowledged(token=1), now=4_000)  # now nothing holds it any more
    Report
    """

    def step(self, event: EventT_contra, now: int) -> Sequence[EffectT_co]:
        """Process one event.

        Args:
            event: What has happened.
            now: The time in microseconds. Each core says of which clock.

        Returns:
            The effects to perform, in order.
        """

    def next_deadline(self) -> int | None:
        """The time at which a ``Tick`` is due if no event comes before, by the clock of ``step``. None: never."""

    def check_invariants(self) -> None:
        """Check what must hold between two events, as far as that is cheap. Tests and the simulation call it.

        Raises:
            InvariantError: An invariant does not hold.
        """


class InvariantError(AssertionError):
    """A core's state contradicts one of its invariants."""


def require(holds: bool, invariant: str) -> None:
    """Raise InvariantError with the text of the invariant unless it holds."""
    if not holds:
        raise InvariantError(invariant)


class RisingValues:
    """Values that must never fall, as last seen: watermarks, commits, sequencers."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def check(self, **values: int) -> None:
        """Compare with the values of the last call.

        Raises:
            InvariantError: A value has fallen.
        """
        last = self._last
        if values == last:
            return
        for name, value in values.items():
            if value < last.get(name, value):
                raise InvariantError(f"{name} never falls: it was {last[name]} and is {value}")
        last.update(values)
