"""Group commit: changes that are committed together, and effects that wait for the journal (sections 6.1.1, 6.1.2)."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.interval.commits.commit_wait import CommitWait
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.commits.sealing import Sealer
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.process.run_queue import RunShare
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED


@mutation("G1", "a sender is ACKed when its records are in the journal")
def acked_uncommitted() -> None:
    """Senders are ACKed as soon as their records' append is in flight."""
    _after_sealing(
        "out.extend(AnswerDelivery(receipt.delivery, DeliveryOutcome.DELIVERY_OUTCOME_ACKED, receipt.excluded) "
        "for receipt, indexes in sealed.consumed if receipt.open == len(indexes))"
    )


@mutation("G9", "a strong production is delivered when it is in the journal")
def sent_uncommitted() -> None:
    """Strong productions are delivered as soon as their append is in flight."""
    _after_sealing("if not self._weak: self._outbox.release(); out.extend(self._send_ready())")


def _after_sealing(change: str) -> None:
    """Do something, too, as soon as an append is in flight."""
    seal = "self._sealer.seal(self._runner.take_batch(), changed, stored_first=True)"
    append = f"sealed = {seal}\n        out.extend(self._append(sealed))\n        {change}"
    rewrite(CommitPipeline.try_commit, f"out.extend(self._append({seal}))", append)


def _unwritten(**fields: Any) -> None:
    """Write entries without these fields."""

    def make(seal: Any) -> Any:
        def without(self: Sealer, *arguments: Any, stored_first: bool) -> Any:
            sealed = seal(self, *arguments, stored_first=stored_first)
            sealed.entry = msgspec.structs.replace(sealed.entry, **fields)
            return sealed

        return without

    replace(Sealer, "seal", make)


@mutation("G2", "a commit has the states that changed")
def unwritten_states() -> None:
    """Entries contain no states. Their rows are written later, as usual."""
    _unwritten(states=[])


@mutation("G2", "a commit has the ids of the records that it consumed")
def unwritten_ids() -> None:
    """Entries contain no ids."""
    _unwritten(ids=[])


@mutation("G9", "a commit has the productions that it made")
def unwritten_productions() -> None:
    """Entries contain no productions. They are delivered after the commit, as usual."""
    _unwritten(productions=[])


@mutation("G6", "a commit has the timers that were set")
def unwritten_timers() -> None:
    """Entries do not contain the timers that were set."""
    _unwritten(timers_set=[])


@mutation("G6", "a commit has the timers that fired or were cancelled")
def unwritten_firings() -> None:
    """Entries do not contain the timers that fired or were cancelled."""
    _unwritten(timers_cleared=[])


@mutation("G2", "a hook that raises leaves no trace")
def traces_of_failures() -> None:
    """The changes that a hook made to the state before it raised stay in the cache."""
    undo = "batch.given_up.discard(key)\n    if context is not None:\n        "
    rewrite(BlockedKeys, f"{undo}context._cell.value = UNSET", f"{undo}pass")


_MANY = "tests/worker/interval/test_mistyped.py::test_mistyped_states_among_many_fail_alone"
_FEW_KEYS = "its commits have fewer keys"

rewriting(
    "states-of-one-part",
    "G2",
    "a commit has the states that changed, also if they are many",
    Sealer.encode_states,
    "while part :=",
    "if part :=",
    seeds=0,
    test=_MANY,
    why=_FEW_KEYS,
)

rewriting(
    "cells-of-failed-states",
    "G2",
    "each cell gets its own state, also if states before it have failed",
    Sealer,
    "found, of_found = _checked(",
    "found, _ = _checked(",
    seeds=0,
    test=_MANY,
    why=_FEW_KEYS,
)


@mutation("G5", "a key's asynchronous hooks run one after the other")
def hooks_at_once() -> None:
    """A key does not wait for its running asynchronous hook: its next record runs at the same time."""
    start = "self.running.start(key, context, item, coroutine)"
    rewrite(BlockedKeys, start, f"{start}\n    self._blocked.block(key, Wait.READY)")


_GATHERED = "tests/worker/interval/test_gathered.py"

rewriting(
    "gathered-without-a-next",
    "G8",
    "a batch waits for the records of a delivery only if that is the next event",
    RunShare.follows,
    "if found == call:",
    "if True:",
    seeds=0,
    test="tests/worker/test_followed.py::test_no_delivery_is_followed_by_one_for_another_core",
    why="there an alarm ends the wait",
)

rewriting(
    "gathered-while-others-come",
    "G8",
    "any event but a delivery ends the wait of a batch for records",
    IntervalPump.is_at_rest,
    "        or self._wait.until is not None\n",
    "",
    seeds=0,
    test=f"{_GATHERED}::test_each_other_event_ends_the_wait",
    why="no other event comes there: the driver sees to it",
)

rewriting(
    "small-deliveries-gathered",
    "G8",
    "a small delivery waits for no other one",
    CommitWait,
    "batch.records < self._fewest or ",
    "",
    seeds=0,
    test=f"{_GATHERED}::test_a_small_delivery_waits_for_no_other",
    why="there deliveries of any size wait",
)

rewriting(
    "gathered-without-bounds",
    "G13",
    "a full batch waits for no records",
    CommitWait,
    "self._runner.full() or ",
    "",
    seeds=0,
    test=f"{_GATHERED}::test_a_full_batch_waits_for_no_other_delivery",
    why="few of its batches are full",
)

_WAIT = "tests/worker/interval/test_commit_wait.py::test_"

rewriting(
    "collecting-without-end",
    "G8",
    "a commit waits for more records for a limited time",
    CommitWait,
    "return self._clocks.elapsed < self.until and ",
    "return ",
    seeds=0,
    test=f"{_WAIT}deliveries_share_a_commit_until_the_wait_is_over",
    why="one simulated topology of ten has a sink, and its timers end the wait",
)

rewriting(
    "collecting-behind-each-ack",
    "G8",
    "a sender that waits for each ACK waits for no other delivery",
    CommitWait,
    " and (self.followed or self._has_load(batch))",
    "",
    seeds=0,
    test=f"{_WAIT}a_sender_that_waits_for_each_ack_waits_once",
    why="it costs time alone",
)

rewriting(
    "collecting-what-is-dropped",
    "G8",
    "records that have changed no state wait for no other delivery",
    CommitWait,
    "if not batch.contexts:",
    "if False:",
    seeds=0,
    test=f"{_WAIT}records_without_a_state_wait_for_no_other",
    why="it costs time alone",
)

rewriting(
    "gathered-behind-the-wait",
    "G8",
    "the waits for deliveries have one beginning",
    CommitWait,
    "if self._collects_for and self._only_collects(batch):",
    "if not self.followed and self._collects_for and self._only_collects(batch):",
    seeds=0,
    test=f"{_WAIT}deliveries_that_are_there_end_with_the_wait",
    why="it costs time alone",
)

rewriting(
    "collecting-without-alarm",
    "G8",
    "an alarm ends the wait of a commit for more records",
    IntervalPump,
    "for at in (scheduler.next_retry(), self._wait.alarm()):",
    "for at in (scheduler.next_retry(), None):",
    seeds=0,
    test=f"{_WAIT}deliveries_share_a_commit_until_the_wait_is_over",
    why="there other events come soon",
)

rewriting(
    "collecting-with-a-production",
    "G8",
    "a commit with a production waits for no record",
    CommitWait,
    "return all(context._productions is None for context in batch.contexts.values())",
    "return True",
    seeds=0,
    test=f"{_WAIT}a_production_waits_for_no_record",
    why="it costs time alone",
)

rewriting(
    "gathered-beside-undone-work",
    "G8",
    "a batch with work of a failed key waits for no records",
    CommitWait,
    " or self._blocked.ready",
    "",
    seeds=0,
    test=f"{_GATHERED}::test_undone_work_waits_for_no_delivery",
    why="it costs time alone",
)

rewriting(
    "commits-of-any-records",
    "G13",
    "a commit has a limited number of bytes of records",
    Runner.batch_full,
    " or batch.consumed_bytes >= settings.consumed_bytes",
    "",
    seeds=0,
    test=f"{_GATHERED}::test_a_batch_has_a_limited_number_of_bytes_of_records",
    why="its records are small",
)

rewriting(
    "nearly-full-batches-divided",
    "G8",
    "records of keys that a batch has run together, though it is nearly full",
    Runner,
    "(settings.consumed_bytes - batch.consumed_bytes)",
    "(settings.batch_bytes - batch.size)",
    seeds=0,
    test=f"{_GATHERED}::test_records_of_a_nearly_full_batch_run_together",
    why="it costs time alone",
)

rewriting(
    "undone-by-long-searches",
    "G8",
    "a step ends when its failed keys were searched in so many records",
    Runner.exhausted,
    " or self.searched >= MAX_SEARCHED_RECORDS",
    "",
    seeds=0,
    test="tests/worker/interval/test_undone.py::test_a_step_searches_a_limited_number_of_records",
    why="its batches are small",
)
