"""What checkers observe of the product, at the moment at which a core decides it.

Every core has one protocol, so there is one place to look: around ``step``. The event and the effects are observed, and
a few public values before and after. Only the recovery of a journal is observed within a step, because the same step
goes on from there. So compiled cores are observed as well: their methods call each other past any replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from millwheel.authority.core import AuthorityCore
from millwheel.authority.messages import AnswerCall, AppendChanges, AppendJournaled, SequencerOffered
from millwheel.client.injector.core import InjectorCore
from millwheel.master.core import MasterCore
from millwheel.model.core_protocol import InvariantError
from millwheel.model.watermarks import InputWatermark
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import Append
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval import core as interval_core
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import LogCore
from millwheel.worker.log import core as log_core
from millwheel.worker.log.messages import Publish, Subscribe
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Accepted, AnswerDelivery, Appended, Opened, SendDelivery
from millwheel.worker.owner import OwnerCore

__all__ = ["Taps"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED

Step = Callable[[Any, Any, int], Any]


@dataclass
class Taps:
    """Lists of listeners. Invariant: listeners only observe the product and change nothing in it."""

    appends: list[Callable[[str, Append], None]] = field(default_factory=list)
    """A journal, and an append to it."""
    recoveries: list[Callable[[IntervalState | LogState], None]] = field(default_factory=list)
    """The state of an interval or a log that was just recovered from the store."""
    acks: list[Callable[[IntervalCore | LogCore, AnswerDelivery], None]] = field(default_factory=list)
    """A receiver's ACK, in flight to the sender."""
    deliveries: list[Callable[[IntervalCore, SendDelivery], None]] = field(default_factory=list)
    """A delivery that an interval sends."""
    confirmations: list[Callable[[str, int, int], None]] = field(default_factory=list)
    """An owner that considers its append journaled: journal, sequencer, commit."""
    publications: list[Callable[[LogState, str, Publish], None]] = field(default_factory=list)
    """What a log publishes to a subscriber, with the name of the subscriber's cursor (empty: it has none)."""
    restores: list[Callable[[AuthorityCore], None]] = field(default_factory=list)
    """A shard of the authority that was just recovered from the store."""
    acceptances: list[Callable[[str, SequencerOffered], None]] = field(default_factory=list)
    """An acceptance that the authority answers, with the shard's journal."""
    advances: list[Callable[[IntervalCore | LogCore], None]] = field(default_factory=list)
    """An interval or a log whose input watermark has advanced."""
    rises: list[Callable[[InputWatermark], None]] = field(default_factory=list)
    """An input watermark whose bound from the senders has risen."""

    @contextmanager
    def listening(self, violated: Callable[[str], None]) -> Iterator[None]:
        """Inside this context, the listeners are called, and ``violated`` for each invariant that a core breaks."""
        owner, shard = self._around_owner, self._around_shard
        with ExitStack() as stack:
            for core, around in (
                (OwnerCore, owner),
                (AuthorityCore, shard),
                (InjectorCore, None),
                (MasterCore, None),
            ):
                step: Step = vars(core)["step"]
                checked = _checked(step if around is None else around(step), violated)
                stack.enter_context(patch.object(core, "step", checked))
            for module in (interval_core, log_core):
                stack.enter_context(patch.object(module, "recover", self._recovering(vars(module)["recover"])))
            yield

    def _recovering(self, recover: Callable[..., None]) -> Callable[..., None]:
        def recovered(state: Any, opened: Any) -> None:
            recover(state, opened)
            for hear in self.recoveries:
                hear(state)

        return recovered

    def _around_owner(self, step: Step) -> Step:
        cursors: dict[int, Subscribe] = {}
        """By the subscriber's ``id()``. The request keeps the subscriber alive, so ids are unique."""

        def stepped(core: IntervalCore | LogCore, event: Any, now: int) -> Any:
            state, kind = core.state, type(event)
            watermark, bound = state.watermark, state.inputs.value
            if kind is Appended:
                for confirm in self.confirmations:
                    confirm(state.config.journal, state.config.sequencer, event.commit)
            elif kind is Subscribe:
                cursors[id(event.subscriber)] = event
            effects = step(core, event, now)
            if kind is Accepted:
                watermark = max(watermark, event.watermark)  # an owner starts from the authority's value
            if state.watermark > watermark and kind is not Opened:
                for advance in self.advances:
                    advance(core)
            if state.inputs.value > bound:
                for rise in self.rises:
                    rise(state.inputs)
            for effect in effects:
                self._on_effect(core, effect, cursors)
            return effects

        return stepped

    def _on_effect(self, core: Any, effect: Any, cursors: dict[int, Subscribe]) -> None:
        kind = type(effect)
        if kind is AnswerDelivery and effect.outcome == _ACKED:
            for acked in self.acks:
                acked(core, effect)
        elif kind is SendDelivery:
            for send in self.deliveries:
                send(core, effect)
        elif kind is Publish:
            for publish in self.publications:
                publish(core.state, cursors[id(effect.subscriber)].cursor, effect)

    def _around_shard(self, step: Step) -> Step:
        appends: dict[AuthorityCore, Append | None] = {}
        """The last append of each shard."""
        offers: dict[tuple[AuthorityCore, int], SequencerOffered] = {}

        def stepped(core: AuthorityCore, event: Any, now: int) -> Any:
            if core not in appends:
                appends[core] = None
                for restore in self.restores:
                    restore(core)
            if isinstance(event, SequencerOffered):
                offers[core, event.token] = event
            elif isinstance(event, AppendJournaled) and (append := appends[core]) is not None:
                for confirm in self.confirmations:
                    confirm(core.journal, append.sequencer, append.commit)
            effects = step(core, event, now)
            for effect in effects:
                if isinstance(effect, AppendChanges):
                    appends[core] = effect.append
                elif isinstance(effect, AnswerCall) and (offered := offers.get((core, effect.token))) is not None:
                    for accept in self.acceptances:
                        accept(core.journal, offered)
            return effects

        return stepped


def _checked(step: Step, violated: Callable[[str], None]) -> Step:
    def stepped(core: Any, event: Any, now: int) -> Any:
        effects = step(core, event, now)
        try:
            core.check_invariants()
        except InvariantError as error:
            violated(f"{type(core).__name__} after {type(event).__name__}: {error}")
        except RuntimeError as error:  # a hold of the output watermark without its owner
            violated(f"{type(core).__name__} after {type(event).__name__}: {error} (G7)")
        return effects

    return stepped
