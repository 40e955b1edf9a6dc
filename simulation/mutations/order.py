"""The order of one key's productions, at each consumer's key and in each log (G15)."""

from __future__ import annotations

from typing import Any

from millwheel.worker.admission import ArrivalOrder
from millwheel.worker.interval.blocked_key_table import BlockedKeyTable
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.hooks import holding_records
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.interval.outbox import outbox, outbox_flows
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.interval.outbox.outbox_flows import OutboxFlows
from millwheel.worker.lookups import WaitingBytes
from millwheel.worker.turns import HolderTurns
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []

_MODEL = "tests/worker/interval/test_production_order.py::test_each_keys_productions_stay_in_order_through_failures"


@mutation(
    "G15",
    "a receiver takes a delivery only behind the one that it names",
    test=_MODEL,
    why="senders halt at once: what is on its way already must be younger than what was refused",
)
def any_order_taken() -> None:
    """Deliveries are admitted in the order of their arrival."""
    rewrite(ArrivalOrder.arrived, "if order is None:", "if True:")


@mutation("G15", "weak productions say what they follow, as strong ones do", seeds=300)
def weak_ones_unordered() -> None:
    """A weak production does not contain its place in its sender's sequence."""
    rewrite(
        CommitPipeline,
        "outbound.token,\n            None,\n            order,",
        "outbound.token, None, None if outbound.opaque else order,",
    )


@mutation(
    "G15",
    "deliveries wait behind one of their sender that is looked into",
    test="tests/worker/interval/test_ordered_arrivals.py::test_what_is_not_looked_up_waits_behind_what_is",
    why="a child must send what it has inherited, and what is its own, before the answer is there",
)
def those_behind_pass() -> None:
    """A delivery that needs no lookup is admitted at once."""
    waits = "    if sender.waiting:"
    rewrite(ArrivalOrder.arrived, waits, f"    sender.waiting = type(sender.waiting)()\n{waits}")


@mutation(
    "G15",
    "what waits for a journal that is no more is regrouped before younger productions are located",
    test="tests/worker/interval/test_production_order.py::test_work_of_an_ended_journal_is_sent_before_younger_work",
    why="a key must produce in the moments after its consumer was split",
)
def moved_ones_stay() -> None:
    """Productions for a removed journal are regrouped only when their delivery is refused."""
    rewrite(Outbox, "self.flows.look_for_moves(consumer)", "pass")


@mutation(
    "G15",
    "what was refused is sent again before what has waited behind it",
    test=_MODEL,
    why="receivers refuse what does not follow: it shows where a flow begins again",
)
def refused_ones_last() -> None:
    """A flow that restarts sends productions that were never sent first."""
    rewrite(outbox_flows, "flow.waiting = deque(due)", "flow.waiting = deque(sorted(due, key=lambda one: one.used))")


@mutation(
    "G15",
    "what was produced before a split or merge is sent before what was produced after it",
    test="tests/worker/interval/test_production_order.py::test_after_a_takeover_older_sequences_are_sent_first",
    why="a child must inherit productions of parents and of their parents",
)
def sequences_of_one_age() -> None:
    """Sequences are sent in the order of their positions, which start at one in each sequence."""
    rewrite(outbox, "if not sequence:\n        return _OWN_AGE", "return 0")


@mutation(
    "G15",
    "what holds the watermark runs behind what was sent before it for the same keys",
    test="tests/worker/interval/test_ordered_arrivals.py::test_a_record_that_holds_follows_its_keys_earlier_ones",
    why="the outbox, or the cache, must be full",
)
def holding_ones_overtake() -> None:
    """It runs at once."""

    def make(_: Any) -> Any:
        def forward(intake: IntervalIntake, chunk: Any) -> None:
            intake.queue.remove(chunk)
            intake.queue.appendleft(chunk)

        return forward

    replace(holding_records, "bring_forward", make)


@mutation(
    "G15",
    "what copies were refused of keeps its place when a flow begins again",
    test="tests/worker/interval/test_production_order.py::test_a_late_answer_about_copies_changes_nothing_unsent",
    why="a late word of copies must meet a flow that begins again",
)
def late_word_of_copies() -> None:
    """A late refusal of copies moves an outbound batch that waits to be sent ahead of the others."""

    def make(refused: Any) -> Any:
        def first(self: OutboxFlows, batch: Any, indexes: Any) -> None:
            if not batch.sent:
                batch.flow.waiting.remove(batch)
                batch.flow.waiting.appendleft(batch)
            refused(self, batch, indexes)

        return first

    replace(OutboxFlows, "copies_refused", make)


rewriting(
    "bytes-wait-uncounted",
    "G13",
    "what waits for look-ups, or behind one, is bounded in bytes",
    WaitingBytes,
    "self.used + size + kept <= limit",
    "True",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_bytes_waiting_for_lookups_are_bounded_over_all_senders",
    why="look-ups are answered soon, and the simulator does not weigh what waits",
)

rewriting(
    "waiting-alone-refused",
    "G8",
    "a delivery of any size may wait for its look-up alone",
    WaitingBytes,
    "return alone or ",
    "return ",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_a_delivery_over_the_bound_waits_for_its_lookup_alone",
    why="the simulator's deliveries are smaller than the bound",
)

rewriting(
    "room-not-kept",
    "G8",
    "room is kept for the sender that was refused first",
    WaitingBytes,
    "if first != sender else 0",
    "if False else 0",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_small_deliveries_do_not_keep_a_large_one_out",
    why="the simulator's deliveries are smaller than the bound",
)

rewriting(
    "room-kept-for-the-gone",
    "G8",
    "room that is kept for a sender which does not come goes to one that comes again",
    WaitingBytes,
    "last > before",
    "True",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_no_room_is_reserved_for_an_ended_sender",
    why="the simulator's deliveries are smaller than the bound",
)

rewriting(
    "room-kept-for-unknown-many",
    "G8",
    "room that is kept for senders which do not come lapses although the one that comes is not remembered",
    WaitingBytes,
    "self._refusals - last <= MAX_REFUSED_SENDERS",
    "True",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_forgotten_senders_that_ended_keep_no_room",
    why="the simulator's deliveries are smaller than the bound",
)

rewriting(
    "room-kept-without-need",
    "G8",
    "no room is kept for a sender whose delivery has nothing to wait for",
    ArrivalOrder.arrived,
    "self._room.forget(name)",
    "pass",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_no_room_is_reserved_for_a_sender_with_nothing_waiting",
    why="the simulator's deliveries are smaller than the bound",
)

rewriting(
    "room-lost-when-refused",
    "G8",
    "a sender that is refused for want of room keeps its place",
    ArrivalOrder.arrived,
    "admission is not Admission.NO_ROOM",
    "True",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_small_deliveries_do_not_keep_a_large_one_out",
    why="the simulator's deliveries are smaller than the bound",
)

rewriting(
    "place-lost-while-waiting",
    "G15",
    "a sender's place is behind the last of its deliveries that waits",
    ArrivalOrder,
    "sender.taken = following.order.number",
    "sender.taken = sender.last = following.order.number",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_records_behind_the_last_waiting_one_get_a_second_lookup",
    why="a sender that is refused begins again: it costs time alone",
)

rewriting(
    "busy-senders-forgotten",
    "G13",
    "of too many senders the one that was silent for the longest time is forgotten",
    ArrivalOrder.arrived,
    "self.senders.move_to_end(name)",
    "pass",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_the_sender_that_was_silent_longest_is_forgotten",
    why="no simulated run has thousands of senders",
)

rewriting(
    "retired-senders-kept",
    "G13",
    "nothing is kept of a sender that was retired while its deliveries waited",
    ArrivalOrder,
    "sender.retired or not sender.taken",
    "False",
    seeds=0,
    test="tests/worker/test_arrivals.py::test_nothing_is_kept_of_a_sender_retired_while_it_waited",
    why="the simulator does not count the senders that are remembered",
)

rewriting(
    "holders-all-at-once",
    "G13",
    "what holds the watermark comes in beyond the bound from one sender at a time",
    HolderTurns.may_enter,
    "if self.sender and not stands_still:",
    "if False:",
    seeds=0,
    test="tests/worker/interval/test_ordered_arrivals.py::test_holding_senders_enter_a_full_interval_one_by_one",
    why="the simulator does not weigh what a full receiver takes in",
)

rewriting(
    "turns-of-the-dead",
    "G8",
    "a sender that comes twice before anything is taken in ends the turn of one that has died",
    HolderTurns.may_enter,
    "again = self._waiting.get(sender) == self._events or self._refused",
    "again = self._refused",
    seeds=0,
    test="tests/worker/test_turns.py::test_a_sender_that_died_in_its_turn_loses_it_to_an_eager_one",
    why="the receiver must be full while the interval of a sender is split, in the moments of its turn",
)

rewriting(
    "turns-of-the-noted-dead",
    "G8",
    "a turn is lost where thousands came and nothing was taken in, though all that are noted are dead",
    HolderTurns.may_enter,
    " or self._refused > 2 * MAX_WAITING",
    "",
    seeds=0,
    test="tests/worker/test_turns.py::test_a_turn_is_lost_though_all_that_are_noted_are_dead",
    why="a thousand senders must die while a receiver is full",
)

rewriting(
    "turns-until-room",
    "G8",
    "a turn ends with the record that holds the watermark, though the rest of its delivery waits for room",
    BlockedKeyTable.is_done,
    "receipt.held > until",
    "False",
    seeds=0,
    test="tests/worker/interval/test_ordered_arrivals.py::test_a_turn_ends_though_its_records_neighbours_wait_for_room",
    why="an outbox must stay full while the intake is, and a delivery must have records of both kinds",
)

rewriting(
    "turns-taken-at-random",
    "G8",
    "the next turn is that of the sender that has waited longest",
    HolderTurns,
    'next(iter(self._waiting), "")',
    '""',
    seeds=0,
    test="tests/worker/test_turns.py::test_the_sender_that_waited_longest_is_next",
    why="no simulated sender finds late records without end",
)

rewriting(
    "turns-over-when-taken",
    "G13",
    "a turn ends when the record that it was for is committed",
    HolderTurns.entered,
    "if receipt is None:",
    "if True:",
    seeds=0,
    test="tests/worker/test_turns.py::test_a_second_sender_waits_until_the_first_is_committed",
    why="the simulator does not weigh what a full receiver takes in",
)
