"""What the product's stores and leases rely on. Only seeds with a real store's behaviour show these mutations."""

from __future__ import annotations

from typing import Final

from millwheel.coordination.etcd import leases
from millwheel.model import envelope
from millwheel.store import writer
from millwheel.store.cassandra import append_connections, journals, states
from millwheel.store.cassandra.frames import ConnectionState
from millwheel.store.cassandra.journals import Journals
from millwheel.store.commit_place import CommitPlace
from millwheel.store.heads import JournalHeads
from millwheel.store.held_calls import HeldCalls
from millwheel.store.writer import StoreThread
from millwheel.worker.process.building import Builder
from millwheel.worker.process.event_host import EventHost
from millwheel.worker.process.owned_states import OwnedStates
from simulation.mutations.base import mutation, rewriting

__all__: list[str] = []

_FRAMES: Final = "tests/store/cassandra/test_frames.py"
_CONNECTIONS: Final = "tests/store/cassandra/test_append_connections.py"
_NO_FRAMES: Final = "the simulator has a driver of its own, and no connections to nodes"


def _change(texts: dict[str, str], names: tuple[str, ...], old: str, new: str) -> None:
    """Change a piece of the text of some statements; ValueError if one does not contain it exactly once."""
    for name in names:
        if texts[name].count(old) != 1:
            raise ValueError(f"statement {name} has {texts[name].count(old)} times, and not once: {old}")
        texts[name] = texts[name].replace(old, new)


@mutation("G3", "on Cassandra an append's transaction expects the head that its owner knows", seeds=300)
def appends_of_any_owner() -> None:
    """The transaction of an older sequencer is applied as well, even after other appends."""
    names = ("append", "append_parts")
    _change(journals.STATEMENTS, names, "IF sequencer = ? AND commit = ?", "IF sequencer >= ? AND commit >= ?")


@mutation(
    "G3",
    "on Cassandra a row's write time is its commit number",
    seeds=0,
    test="tests/simulation/test_cassandra_ways.py::test_the_later_commits_row_stands_for_any_clocks",
    why="a flush must be held up until its successor's has been acknowledged",
)
def rows_by_the_clock() -> None:
    """Of two writes of a row, the one with the larger clock time of its writer wins."""
    _change(states.STATEMENTS, ("write",), " USING TIMESTAMP ?", "")
    states.STATEMENTS["empty"] = states.STATEMENTS["write"]


rewriting(
    "remembered_part_lists",
    "G2",
    "on Cassandra a part list is written again after an append without an answer",
    Journals.append,
    "self._own.pop(journal, None)",
    "pass",
    seeds=0,
    test="tests/simulation/test_cassandra_ways.py::test_an_unanswered_part_list_is_replaced_by_the_next",
    why="all requests of a call must be without an answer, and the append after it must go back to the list before",
)

rewriting(
    "numbers_free_when_left",
    "G2",
    "on a connection for appends the number of a request is taken until its answer has come",
    ConnectionState.leave,
    'request.left, request.parameters = True, b""',
    "self._free.append(stream)",
    seeds=0,
    test=f"{_FRAMES}::test_requests_in_flight_are_bounded",
    why=_NO_FRAMES,
)

rewriting(
    "left_appends_sent_again",
    "G3",
    "a node that had forgotten a statement gets an append again only while its caller waits",
    ConnectionState,
    "not request.left and self._goes_on(",
    "self._goes_on(",
    seeds=0,
    test=f"{_FRAMES}::test_an_append_that_was_left_is_not_sent_once_more",
    why=_NO_FRAMES,
)

rewriting(
    "strange_answers_passed_over",
    "G2",
    "an answer to no request ends the connection",
    ConnectionState,
    'raise FrameError(f"an answer to the request {stream}, which is not in flight")',
    "return None",
    seeds=0,
    test=f"{_FRAMES}::test_what_cannot_be_understood_ends_the_connection",
    why=_NO_FRAMES,
)

rewriting(
    "lost_answers_for_ever",
    "G13",
    "a connection whose answers do not come is replaced before its numbers run out",
    ConnectionState.tick,
    "if lost > MAX_LOST_ANSWERS:",
    "if False:",
    seeds=0,
    test=f"{_FRAMES}::test_answers_that_never_come_end_the_connection",
    why=_NO_FRAMES,
)

rewriting(
    "numbers_given_up_by_others",
    "G2",
    "a caller that was answered does not give up the number that another has by then",
    append_connections,
    "if self.waiting.get(stream) is answer:",
    "if stream in self.waiting:",
    seeds=0,
    test=f"{_CONNECTIONS}::test_a_caller_does_not_give_up_the_number_of_another",
    why=_NO_FRAMES,
)

rewriting(
    "wrong_nodes_tried_at_once",
    "G13",
    "a node whose connections end soon gets the next one later and later",
    append_connections,
    "self._failed(endpoint, node, former.ended)",
    "pass",
    seeds=0,
    test=f"{_CONNECTIONS}::test_a_node_that_goes_on_being_wrong_is_backed_off",
    why=_NO_FRAMES,
)

rewriting(
    "answers_before_the_sync",
    "G1",
    "the embedded store confirms what a sync has covered",
    StoreThread,
    "any(call.sync for call in group)",
    "False",
    seeds=300,
)


rewriting(
    "waiting_calls_forgotten",
    "G8",
    "the embedded store commits small calls that waited for its thread",
    StoreThread,
    "waiting = None if self._outstanding else next(iter(self._here), None)",
    "waiting = None",
    seeds=0,
    test="tests/store/test_writer.py::test_a_small_call_waits_for_the_thread_and_is_in_place",
    why="in the simulator the thread is idle between two steps; the test shows it in seconds",
)


rewriting(
    "slices_take_calls_along",
    "G8",
    "the event loop waits for a short slice of a flush, and commits its small calls itself",
    StoreThread,
    "self._writing.acquire(timeout=SLICE_WAIT_SECONDS)",
    "self._writing.acquire(blocking=False)",
    seeds=0,
    test="tests/store/test_writer.py::test_a_short_slice_takes_no_call_off_the_loop",
    why="in the simulator the thread is idle between two steps",
)


rewriting(
    "flushes_without_rests",
    "G8",
    "a flush rests after each slice, so that the event loop has half of the time",
    writer.rest_after,
    "max(took, _SHORTEST_REST_SECONDS)",
    "_SHORTEST_REST_SECONDS",
    seeds=0,
    test="tests/store/test_writer.py::test_the_loop_has_half_of_the_time_of_a_flush",
    why="slices take no time in the simulator",
)


rewriting(
    "entries_deleted_at_once",
    "G8",
    "the embedded store deletes entries in pieces, and appends come between",
    JournalHeads.delete_entries,
    "min(below, first + MAX_DELETED_ENTRIES)",
    "below",
    seeds=0,
    test="tests/store/test_embedded.py::test_many_entries_are_deleted_in_pieces",
    why="a deletion takes no time in the simulator",
)


rewriting(
    "busy_loops_wait_for_syncs",
    "G8",
    "syncs on the event loop take a quarter of its time at most, unless they are as short as a handover",
    CommitPlace,
    "and self._spent < _BURST_SECONDS",
    "and True",
    seeds=0,
    test="tests/store/test_commit_place.py::test_short_syncs_take_a_quarter_of_a_busy_loops_time",
    why="syncs take no time in the simulator",
)


rewriting(
    "debts_of_fast_syncs",
    "G8",
    "the time of fast syncs on the event loop leaves no debt that keeps short ones off it for long",
    CommitPlace.took,
    "min(self._spent + seconds, _MAX_DEBT_SECONDS)",
    "self._spent + seconds",
    seeds=0,
    test="tests/store/test_commit_place.py::test_fast_syncs_leave_no_debt",
    why="syncs take no time in the simulator",
)


rewriting(
    "faults_of_callers_shared",
    "G8",
    "a caller that fails when it gets its outcome leaves the others of its write theirs",
    writer.resolve,
    "except Exception as error:",
    "except KeyError as error:",
    seeds=0,
    test="tests/store/test_writer.py::test_a_caller_that_fails_takes_no_other_along",
    why="the simulator's stores do not group writes",
)


rewriting(
    "leases_by_the_steady_clock",
    "G3",
    "a lease is judged by a clock that counts suspension",
    leases.seconds_since_boot,
    "time.CLOCK_BOOTTIME",
    "time.CLOCK_MONOTONIC",
    seeds=300,
)

rewriting(
    "deflated-before-its-format",
    "G12",
    "entries are deflated from the cluster's format 4 on",
    Builder,
    "self._catalog.format >= DEFLATED_ENTRIES",
    "True",
    seeds=0,
    test="tests/worker/test_building.py::test_entries_are_deflated_from_their_format_on",
    why="the simulated clusters have the newest format",
)

rewriting(
    "deflated-length-unchecked",
    "G13",
    "a deflated value is read up to the length that it states, and has exactly that",
    envelope,
    "len(payload) != length or not stream.eof or stream.unused_data",
    "False",
    seeds=0,
    test="tests/model/test_envelope.py::test_a_deflated_value_has_the_bytes_that_it_states",
    why="the simulator's stores do not write values that contradict themselves",
)

rewriting(
    "large-entries-at-once",
    "G8",
    "the other intervals of a worker have their turn between pieces of a large entry",
    journals,
    "            return result\n        await asyncio.sleep(0)",
    "            return result",
    seeds=0,
    test="tests/store/cassandra/test_turns.py::test_others_have_turns_while_large_entries_go_by",
    why="a simulated entry has few bytes",
)

_SYNC: Final = "tests/worker/test_before_the_sync.py"
_NO_QUEUE: Final = "in the simulator no interval runs in the process of the embedded store, and only answers wait"

rewriting(
    "nothing_waits_for_the_sync",
    "G1",
    "what leaves the process waits for the sync of the commits that it follows from",
    HeldCalls.run,
    "self._since is None",
    "True",
    seeds=0,
    test=f"{_SYNC}::test_what_leaves_the_process_is_on_the_disk",
    why=_NO_QUEUE,
)

rewriting(
    "hooks_do_not_wait_for_the_sync",
    "G1",
    "an asynchronous hook, which acts on other systems, waits for the sync",
    EventHost.perform,
    "self._after_sync(partial(self._start_hook, effect))",
    "self._start_hook(effect)",
    seeds=0,
    test=f"{_SYNC}::test_what_leaves_the_process_is_on_the_disk",
    why=_NO_QUEUE,
)

rewriting(
    "failed_syncs_release",
    "G1",
    "after a failed sync the calls stay held",
    StoreThread,
    "if not self._stale:",
    "if True:",
    seeds=0,
    test=f"{_SYNC}::test_a_failed_sync_is_repeated_and_nothing_leaves_before",
    why=_NO_QUEUE,
)

rewriting(
    "held_calls_without_a_step",
    "G8",
    "a step that gives its calls to the store's thread leaves another one to sync for what is held",
    StoreThread,
    "if self._held.waits:  # this may have been the step that was to sync for them",
    "if False:",
    seeds=0,
    test="tests/store/test_embedded.py::test_calls_are_released_if_the_thread_takes_their_step",
    why=_NO_QUEUE,
)

rewriting(
    "lost_commits_are_not_noticed",
    "G9",
    "a process ends if the disk has lost a commit that its intervals depend on",
    JournalHeads.lost,
    "head.commit < commit",
    "False",
    seeds=0,
    test=f"{_SYNC}::test_a_disk_that_loses_what_was_written_ends_the_process",
    why=_NO_QUEUE,
)

rewriting(
    "inspections_do_not_wait_for_the_sync",
    "G1",
    "a client is shown what is on the disk",
    OwnedStates.committed,
    "self._after_sync(synced.set)",
    "synced.set()",
    seeds=0,
    test="tests/worker/test_held_effects.py::test_what_a_client_is_shown_is_on_the_disk",
    why=_NO_QUEUE,
)

rewriting(
    "dropped_journals_stay_reported",
    "G8",
    "a journal that is dropped in the write of its last append leaves no commit that could be missed",
    JournalHeads.note_reported,
    "head is not None and head.commit >= commit",
    "True",
    seeds=0,
    test="tests/store/test_embedded.py::test_a_dropped_journal_leaves_no_report",
    why=_NO_QUEUE,
)
