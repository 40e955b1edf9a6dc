"""The order of what one key produces, at each consumer's key and in each log (G15)."""

from __future__ import annotations

from collections import deque
from typing import Any

from millwheel.worker.arrivals import ArrivalOrder
from millwheel.worker.interval import outbox
from millwheel.worker.interval.commits import Commits
from millwheel.worker.interval.flows import Flow
from millwheel.worker.interval.intake import Intake
from millwheel.worker.interval.outbox import Outbox
from simulation.mutations.base import mutation, replace

__all__: list[str] = []

_MODEL = (
    "tests/interval/test_production_order.py::test_g15_each_key_is_sent_its_productions_in_order_through_everything_4_1"
)


@mutation(
    "G15",
    "a receiver takes a delivery only behind the one that it names",
    test=_MODEL,
    why="senders halt at once: what is on its way already must be younger than what was refused",
)
def any_order_taken() -> None:
    """Deliveries are taken as they come."""

    def make(arrived: Any) -> Any:
        def at_once(self: ArrivalOrder, delivery: Any, out: list[Any]) -> None:
            self._admit(delivery, out)

        return at_once

    replace(ArrivalOrder, "arrived", make)


@mutation("G15", "weak productions say what they follow, as strong ones do", seeds=300)
def weak_ones_unordered() -> None:
    """A receiver is not told of a weak production's place among those of its sender."""

    def make(send: Any) -> Any:
        def sending(self: Commits, shipment: Any, order: Any) -> Any:
            made = send(self, shipment, order)
            if shipment.opaque:
                made.delivery.order = None
            return made

        return sending

    replace(Commits, "_send", make)


@mutation(
    "G15",
    "deliveries wait behind one of their sender that is looked into",
    test="tests/interval/test_ordered_arrivals.py::test_g15_what_is_not_looked_up_waits_behind_what_is_6_1_1",
    why="a child must send what it has inherited, and what is its own, before the answer is there",
)
def those_behind_pass() -> None:
    """What need not be looked up is taken at once."""

    def make(arrived: Any) -> Any:
        def passing(self: ArrivalOrder, delivery: Any, out: list[Any]) -> None:
            sender = self._senders.get(delivery.sender.origin)
            if sender is not None:
                sender.waiting = deque()
            arrived(self, delivery, out)

        return passing

    replace(ArrivalOrder, "arrived", make)


@mutation(
    "G15",
    "what waits for a journal that is no more is regrouped before younger productions are located",
    test="tests/interval/test_production_order.py"
    "::test_g15_what_waits_for_a_journal_that_is_no_more_goes_before_what_is_younger_7_1",
    why="a key must produce in the moments after its consumer was split",
)
def moved_ones_stay() -> None:
    """They are regrouped when their sending is refused."""
    replace(Outbox, "_make_way", lambda _: lambda self, shipments: None)


@mutation(
    "G15",
    "what was refused is sent again before what has waited behind it",
    test=_MODEL,
    why="receivers refuse what does not follow: it shows where a flow begins again",
)
def refused_ones_last() -> None:
    """A flow that begins again sends what was never sent first."""

    def make(begin: Any) -> Any:
        def backwards(self: Flow) -> None:
            sent = {one for one in self.shipments if one.used}
            begin(self)
            self.waiting = deque(sorted(self.waiting, key=lambda one: one in sent))

        return backwards

    replace(Flow, "begin", make)


@mutation(
    "G15",
    "what was produced before a split or merge is sent before what was produced after it",
    test="tests/interval/test_production_order.py"
    "::test_g15_after_a_takeover_older_sequences_come_first_and_streams_by_commits_7_1",
    why="a child must inherit productions of parents and of their parents",
)
def sequences_of_one_age() -> None:
    """Sequences are sent as their positions say, which start at one in each."""
    replace(outbox, "_age", lambda _: lambda sequence: 0)


@mutation(
    "G15",
    "what holds the watermark runs behind what was sent before it for the same keys",
    test="tests/interval/test_ordered_arrivals.py"
    "::test_g15_what_holds_the_watermark_runs_behind_what_its_key_was_sent_before_4_1",
    why="the outbox, or the cache, must be full",
)
def holding_ones_overtake() -> None:
    """It runs at once."""

    def make(_: Any) -> Any:
        def forward(self: Intake, chunk: Any) -> None:
            self.line.remove(chunk)
            self.line.appendleft(chunk)

        return forward

    replace(Intake, "bring_forward", make)


@mutation(
    "G15",
    "what copies were refused of keeps its place when a flow begins again",
    test="tests/interval/test_production_order.py"
    "::test_g15_a_late_word_of_copies_changes_nothing_that_waits_to_be_sent_4_1",
    why="a late word of copies must meet a flow that begins again",
)
def late_word_of_copies() -> None:
    """Late word of copies has a shipment that waits to be sent go before the others."""

    def make(refused: Any) -> Any:
        def first(self: Outbox, shipment: Any, indexes: Any) -> None:
            if not shipment.sent:
                shipment.flow.waiting.remove(shipment)
                shipment.flow.waiting.appendleft(shipment)
            refused(self, shipment, indexes)

        return first

    replace(Outbox, "copies_refused", make)
