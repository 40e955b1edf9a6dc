"""Stream logs: consecutive offsets, durable cursors, and reports to subscribers (section 4.3)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace as replace_fields

from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.log import recovery
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.stored_segments import Records
from millwheel.worker.log.subscribers import Subscribers
from millwheel.worker.messages import Acknowledge
from millwheel.worker.process import building
from simulation.mutations.base import mutation, replace

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

    def make(try_commit: Any) -> Any:
        def early(self: LogCommits) -> list[Any]:
            before = self._in_flight
            out: list[Any] = try_commit(self)
            if self._in_flight is not None and self._in_flight is not before:
                receipts = [piece.receipt for piece in self._in_flight.pieces]
                acked = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
                out.extend(Acknowledge(one.delivery, acked, one.excluded) for one in receipts if one.open == 1)
            return out

        return early

    replace(LogCommits, "try_commit", make)


@mutation("G1", "a log shows what is in its journal")
def log_shows_uncommitted() -> None:
    """Subscribers get records whose append is still in flight."""

    def commit(try_commit: Any) -> Any:
        def early(self: LogCommits) -> list[Any]:
            before = self._in_flight
            out: list[Any] = try_commit(self)
            sealed = self._in_flight
            if sealed is not None and sealed is not before:
                self.state.records.apply(sealed.entry, sealed.commit)
            return out

        return early

    def apply(original: Any) -> Any:
        def once(self: Records, entry: Any, commit: int, replayed: bool = False) -> None:
            if entry.first == self.end:
                original(self, entry, commit, replayed)

        return once

    replace(Records, "apply", apply)
    replace(LogCommits, "try_commit", commit)


@mutation("G1", "a log's new owner knows the ids of what was logged")
def log_forgets_ids() -> None:
    """A log's new owner knows the ids of its base, and none of the later ones."""

    def make(apply: Any) -> Any:
        def forgetful(state: Any, number: int, entry: Any, where: str) -> None:
            entry.ids.clear()
            apply(state, number, entry, where)

        return forgetful

    replace(recovery, "_apply", make)


@mutation("G1", "a log's new owner has the records that were logged")
def log_forgets_records() -> None:
    """A log's new owner has the records of its base, and assigns later offsets a second time."""

    def make(apply: Any) -> Any:
        def forgetful(state: Any, number: int, entry: Any, where: str) -> None:
            end = state.records.end
            apply(state, number, replace_fields(entry, first=end, values=[], timestamps=[], cuts=[]), where)

        return forgetful

    replace(recovery, "_apply", make)


@mutation(
    "G1",
    "a cursor's ACK counts when it is in the journal",
    seeds=10,
    test="tests/worker/log/test_log_subscribers.py::test_a_subscriber_is_notified_of_an_ack_once_it_is_journaled",
    why="a log must be lost in the moment between an ACK and its commit",
)
def cursors_unjournaled() -> None:
    """Subscribers' ACKs are reported as durable as soon as they arrive."""

    def make(news: Any) -> Any:
        def early(self: Subscribers, session: Any) -> tuple[int, int, int]:
            watermark, following, acked = news(self, session)
            received = session.cursor.newest if session.cursor is not None else 0
            return watermark, following, max(acked, received)

        return early

    replace(Subscribers, "_news", make)


@mutation(
    "G1",
    "a cursor that is created again is another one, also while a request for the old one is in flight",
    seeds=10,
    test="tests/worker/log/test_log_subscribers.py::test_a_cursor_created_again_during_an_append_is_another",
    why="a cursor must be deleted and created again while one append is in flight",
)
def cursors_by_name() -> None:
    """A cursor counts as durable while the journal has any cursor of its name, and starts at that cursor's position."""

    def by_name(self: Subscribers, session: Any) -> bool:
        cursors, cursor = self.state.cursors, session.cursor
        old = cursors._durable.get(cursor.name)
        if old is None or cursors.news.get(cursor.name) is cursor:
            return False
        session.ready = True
        session.position = max(cursor.newest, old.acked or 0, session.resume or 0)
        return True

    replace(Subscribers, "_make_ready", lambda _: by_name)


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

    def make(watermark_at: Any) -> Any:
        def latest(self: Subscribers, offset: int) -> int:
            watermark: int = watermark_at(self, offset)
            return max(watermark, self.state.watermark) if offset >= self.state.records.end else watermark

        return latest

    replace(Subscribers, "_watermark_at", make)
