"""Stream logs: consecutive offsets, durable cursors, and reports to subscribers (section 4.3)."""

from __future__ import annotations

from typing import Any

from millwheel.rpc.clock import wall_now
from millwheel.worker.log import recovery
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.pump import Subscribers
from millwheel.worker.log.stored_segments import StoredRecords
from millwheel.worker.process import building
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation(
    "G1",
    "a log ACKs what is in its journal",
    seeds=20,
    test="tests/worker/log/test_log_core.py::test_a_delivery_is_acked_and_shown_only_once_journaled",
    why="a log must be lost in the moment between an ACK and its commit",
)
def log_acks_uncommitted() -> None:
    """A log ACKs records as soon as their append is in flight."""
    _when_in_flight(
        "[AnswerDelivery(one.receipt.delivery, _ACKED, one.receipt.excluded) "
        "for one in chunks if one.receipt.open == 1]"
    )


def _when_in_flight(effects: str) -> None:
    """Do something, too, as soon as an append is in flight."""
    append = "state.journal.append(sealed.commit, blob, len(blob), state.records.stored_to)"
    rewrite(LogCommits.try_commit, f"[{append}]", f"[{append}, *({effects})]")


@mutation("G1", "a log shows what is in its journal")
def log_shows_uncommitted() -> None:
    """Subscribers get records whose append is still in flight."""

    def apply(original: Any) -> Any:
        def once(self: StoredRecords, entry: Any, commit: int, replayed: bool = False) -> None:
            if entry.first == self.end:
                original(self, entry, commit, replayed)

        return once

    replace(StoredRecords, "apply", apply)
    _when_in_flight("state.records.apply(sealed.entry, sealed.commit) or []")


@mutation("G1", "a log's new owner knows the ids of what was logged")
def log_forgets_ids() -> None:
    """A log's new owner knows the ids of its base, and none of the later ones."""
    rewrite(recovery, "if entry.ids:", "if False:")


@mutation("G1", "a log's new owner has the records that were logged")
def log_forgets_records() -> None:
    """A log's new owner has the records of its base, and assigns later offsets a second time."""
    nothing = "first=state.records.end, values=[], timestamps=[], cuts=[]"
    entry = f'__import__("msgspec").structs.replace(entry, {nothing})'
    rewrite(recovery, "if entry.first != state.records.end:", f"entry = {entry}\n    if False:")


@mutation(
    "G1",
    "a cursor's ACK counts when it is in the journal",
    seeds=10,
    test="tests/worker/log/test_log_subscribers.py::test_a_subscriber_is_notified_of_an_ack_once_it_is_journaled",
    why="a log must be lost in the moment between an ACK and its commit",
)
def cursors_unjournaled() -> None:
    """Subscribers' ACKs are reported as durable as soon as they arrive."""
    rewrite(Subscribers, "acked = session.cursor.acked or 0 if", "acked = session.cursor.newest if")


@mutation(
    "G1",
    "a cursor that is created again is another one, also while a request for the old one is in flight",
    seeds=10,
    test="tests/worker/log/test_log_subscribers.py::test_a_cursor_created_again_during_an_append_is_another",
    why="a cursor must be deleted and created again while one append is in flight",
)
def cursors_by_name() -> None:
    """A cursor counts as durable while the journal has any cursor of its name, and starts at that cursor's position."""
    durable = "    if session.cursor is None or not session.cursor.is_durable:\n        return False\n"
    by_name = (
        "    cursors, cursor = self.state.cursors, session.cursor\n"
        "    old = cursors._durable.get(cursor.name)\n"
        "    if old is None or cursors.unsealed.get(cursor.name) is cursor:\n"
        "        return False\n"
        "    session.resume = max(session.resume or 0, old.acked or 0)\n"
    )
    rewrite(Subscribers, durable, by_name)


@mutation(
    "G1",
    "what a log keeps grows old by a clock that cannot be set",
    seeds=10,
    test="tests/simulation/test_clock_set_wrong.py::test_unread_records_are_kept_though_a_clock_is_set_ahead",
    why="a clock must go an hour ahead before the first read",
)
def aged_by_the_wall() -> None:
    """Logs use the wall clock, as intervals do."""

    def make(clock: Any) -> Any:
        return wall_now

    replace(building, "steady_now", make)


@mutation(
    "G7",
    "subscribers are sent the watermark of the last journaled entry",
    seeds=10,
    test="tests/worker/log/test_log_core.py::test_a_deposed_owner_publishes_no_watermark_it_receives",
    why="a subscriber must listen to a deposed owner still",
)
def log_hearsay() -> None:
    """Subscribers get the latest watermark that the log's owner has received."""
    rewrite(Subscribers, "return state.journaled_watermark", "return max(state.journaled_watermark, state.watermark)")
