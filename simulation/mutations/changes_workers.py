"""Mutations of conditions and the order of awaits between a worker and store, coordinator and senders (section 6.2)."""

from __future__ import annotations

from millwheel.model.outbound import DeliveryAttempt
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.process import delivery_service
from millwheel.worker.process.calls import HostCalls
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.hosts import Hosts
from millwheel.worker.process.notices import HostNotices
from millwheel.worker.process.opening import Opener
from millwheel.worker.process.peers import PeerConnection
from millwheel.worker.process.registration import Assignments, Registration
from millwheel.worker.process.run_queue import LoopPause
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "refused-after-silence",
    "G3",
    "of a refusal after a silence only one by the very same append is success",
    RetriedCalls.append,
    "if not uncertain or (error.sequencer, error.commit) != (append.sequencer, append.commit):",
    "if not uncertain:",
    seeds=0,
    test="tests/worker/test_host.py::test_our_commit_number_by_another_sequencer_is_not_ours",
    why="the first 12 seeds hold without it; the test shows it in seconds",
)

rewriting(
    "refused-without-silence",
    "G3",
    "a refusal that nothing uncertain came before is a refusal",
    RetriedCalls.append,
    "if not uncertain or (error.sequencer, error.commit)",
    "if (error.sequencer, error.commit)",
    seeds=0,
    test="tests/worker/test_host.py::test_a_refusal_after_no_silence_is_never_ours",
    why="the first 12 seeds hold without it; the test shows it in seconds",
)

rewriting(
    "closed-hosts-silent",
    "G8",
    "a delivery to an interval that was let go is answered",
    CoreHost.post,
    "            refuse_not_owner(event)\n",
    "",
    seeds=0,
    test="tests/worker/test_host.py::test_every_delivery_is_answered_when_the_host_closes",
    why="the first 12 seeds hold without it; the test shows it in seconds",
)

rewriting(
    "closed-hosts-work",
    "G3",
    "what was posted before an interval was let go is not done after",
    CoreHost,
    "if self.closed:\n        return\n    began",
    "if False:\n        return\n    began",
    seeds=0,
    test="tests/worker/test_host.py::test_every_delivery_is_answered_when_the_host_closes",
    why="the first 12 seeds hold without it; the test shows it in seconds",
)

rewriting(
    "unanswered-at-the-end",
    "G8",
    "deliveries that wait are answered when the interval is let go",
    CoreHost,
    "        refuse_not_owner(delivery)\n",
    "        pass\n",
)

rewriting(
    "own-parts-deleted",
    "G12",
    "an owner deletes parts of earlier owners alone",
    HostCalls,
    "part.sequencer < sequencer",
    "part.sequencer <= sequencer",
)

rewriting(
    "named-leftovers-deleted",
    "G12",
    "parts of earlier owners that the head names stay",
    HostCalls,
    "older.difference((await store.read_head(journal)).parts)",
    "older",
    seeds=0,
    test="tests/worker/test_host.py::test_earlier_owners_leftovers_are_deleted_at_a_takeover",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "parts-reported-first",
    "G12",
    "a base is named when its parts are written",
    HostCalls,
    "    for part, blob",
    "    self._host.post(PartsWritten(write.number))\n    for part, blob",
    seeds=0,
    test="tests/worker/test_host.py::test_a_write_is_reported_when_the_store_has_acknowledged_it",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "rows-reported-first",
    "G12",
    "rows are taken for written when the store has acknowledged them",
    HostCalls,
    "    await self._retried.call(\n        lambda",
    "    self._host.post(StatesFlushed(flush.number))\n    await self._retried.call(\n        lambda",
    seeds=0,
    test="tests/worker/test_host.py::test_a_write_is_reported_when_the_store_has_acknowledged_it",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "copies-reported-first",
    "G11",
    "copied segments are named when they are written",
    HostCalls,
    "    for journal, part, copy",
    "    self._host.post(PartsWritten(effect.number))\n    for journal, part, copy",
    seeds=0,
    test="tests/worker/test_host.py::test_a_write_is_reported_when_the_store_has_acknowledged_it",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "first-entry-unread",
    "G12",
    "an opening reads the first entry after the truncation point",
    Opener,
    "head.truncation_point + 1",
    "head.truncation_point + 2",
    seeds=0,
    test="tests/worker/test_host.py::test_opening_reads_what_the_head_names_or_reports_why_not",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "own-record-kept-on",
    "G3",
    "intervals that came by an earlier registration are given up",
    Registration,
    "assigned to it.\n                await self._lapsed()",
    "assigned to it.\n                pass",
    seeds=0,
    test="tests/worker/test_registration.py::test_assignments_of_an_unconfirmed_registration_are_given_up",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "partial-answers-joined",
    "G1",
    "an ACK of a part is not reported as an ACK of the whole",
    delivery_service,
    "outcome == _ACKED and not indexes and not message",
    "outcome == _ACKED and not message",
    seeds=0,
    test="tests/worker/test_delivery_service.py::test_acks_of_whole_batches_share_messages_overtaking_nothing",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "broken-streams-forgotten",
    "G1",
    "a worker sends again what had no answer when a stream to another worker broke",
    PeerConnection.disconnected,
    "self._fail_open()",
    "self._outstanding.clear()",
    seeds=0,
    test="tests/worker/test_delivery_service.py::test_unanswered_batches_are_sent_again_after_a_broken_stream",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "partial-refusals-whole",
    "G13",
    "a refusal of a part leaves the rest of an attempt to be ACKed",
    DeliveryAttempt.answered,
    "kind is AnswerKind.FULL and indexes",
    "False",
    seeds=0,
    test="tests/model/test_outbound.py::test_an_answer_settles_the_same_records_as_one_by_one",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "namesakes-run",
    "G3",
    "a worker runs nothing that is assigned to another of its name",
    Assignments.owned,
    "[] if self._duplicate_id() else ",
    "",
    seeds=0,
    test="tests/worker/test_worker.py::test_of_two_processes_of_one_name_one_opens_its_assignment",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "refused-for-successors",
    "G3",
    "a refused report ends the owner with that very sequencer",
    Hosts,
    "same and hosted.sequencer == sequencer",
    "same",
    seeds=0,
    test="tests/worker/test_worker.py::test_a_refusal_of_a_former_owners_report_spares_the_present",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "joined-without-past",
    "G8",
    "a sender that joins an interval is known by what was broadcast of it before",
    HostNotices,
    "if not groups <= one.groups:",
    "if False:",
    seeds=0,
    test="tests/worker/test_worker.py::test_a_sender_that_joins_is_known_by_earlier_broadcasts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "pauses-without-end",
    "G8",
    "topologies run although the event loop always has other work",
    LoopPause.is_over,
    " or now >= self._until",
    "",
    seeds=0,
    test="tests/worker/test_runloop.py::test_a_busy_loop_stops_no_topology",
    why="simulated workers have no event loop with other work",
)
