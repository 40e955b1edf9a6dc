"""The base of the drivers that run one core in tests. Events and deadlines come in the order of time.

A subclass performs the core's effects, at once (``begin``) or when the test asks for it (``finish``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from millwheel.model.core_protocol import Core, Tick

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")
SomeEffect = TypeVar("SomeEffect")

_MAX_STEPS = 10_000


class SingleCoreDriver(Generic[EventT, EffectT]):
    """Drives one core in virtual time. Checks its invariants after each event. ``waiting``: effects to perform."""

    core: Core[EventT | Tick, EffectT]

    def __init__(self, now: int = 0) -> None:
        """A subclass sets ``core`` here, and again after each crash."""
        self.now = now
        self.waiting: list[EffectT] = []

    # Effects. Each subclass performs those of its core.

    def begin(self, effect: EffectT) -> EventT | None:
        """Perform an effect at once, or keep it waiting. Returns the event that answers it, if there is one already."""
        self.waiting.append(effect)
        return None

    def finish(self, effect: EffectT) -> EventT | None:
        """Perform an effect that has waited. Returns the event that answers it, if there is one."""
        raise AssertionError(f"this driver does not perform {effect}: the test does")

    # Events and time.

    def post(self, event: EventT | Tick) -> Sequence[EffectT]:
        """Pass the core an event. Returns the effects, which are not performed yet."""
        effects = self.core.step(event, self.now)
        self.core.check_invariants()
        return effects

    def perform(self, effects: Iterable[EffectT]) -> None:
        """Begin effects in their order. Then pass their answers to the core."""
        for answer in [self.begin(effect) for effect in effects]:
            if answer is not None:
                self.handle(answer)

    def handle(self, event: EventT | Tick, now: int | None = None) -> None:
        """Pass the core an event, and begin its effects. ``now`` None: no time has passed."""
        self.now = self.now if now is None else now
        self.perform(self.post(event))

    def step(self, index: int = 0) -> None:
        """Perform one of the waiting effects, and pass its answer to the core."""
        answer = self.finish(self.waiting.pop(index % len(self.waiting)))
        if answer is not None:
            self.handle(answer)

    def run(self) -> None:
        """Perform effects until none is waiting."""
        for _ in range(_MAX_STEPS):
            if not self.waiting:
                return
            self.step()
        raise AssertionError("the core never comes to rest")

    def take(self, kind: type[SomeEffect]) -> list[SomeEffect]:
        """Remove the waiting effects of one kind, and return them. The test performs them."""
        found = [one for one in self.waiting if isinstance(one, kind)]
        self.waiting = [one for one in self.waiting if not isinstance(one, kind)]
        return found

    def pass_time(self, duration: int) -> None:
        """Advance the time. A tick comes at each deadline in between."""
        end = self.now + duration
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.handle(Tick())
            if self.core.next_deadline() == deadline:
                raise AssertionError(f"the deadline at {deadline} stays, although its tick has come")
        self.now = end
