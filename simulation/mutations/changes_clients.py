"""Mutations of comparisons, extrema, conditions and the order of awaits in clients (sections 4.3, 5.2)."""

from __future__ import annotations

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.outbound import OutboundQueues
from millwheel.client.injector.outbound_queue import InjectedBatch, OutboundQueue
from millwheel.client.injector.rerouting import Rerouting
from millwheel.client.injector.resend_policy import ResendingQueues
from millwheel.client.subscription import Subscription
from millwheel.client.subscription.acks import AckSender
from millwheel.client.subscription.log_link import LogLink
from millwheel.client.subscription.reading import LogCall
from millwheel.client.watermark_streams import ReportStream
from millwheel.model.outbound import DeliveryAttempt, OutboundBatch
from millwheel.rpc.delivery_connection import DeliveryConnection
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "unkeyed-hold-nothing",
    "G7",
    "records that wait for their keys hold the injector's watermark",
    InjectorCore,
    "if self.unkeyed.records:",
    "if False:",
    seeds=0,
    test="tests/injectors/test_core_model.py::test_every_record_arrives_once_and_holds_the_watermark",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "flushed-but-one",
    "G1",
    "a flush waits for the last record",
    InjectorCore.flushed,
    ">= accepted",
    ">= accepted - 1",
    seeds=0,
    test="tests/injectors/test_core.py::test_a_late_reader_took_nothing_that_an_ended_one_left",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "unkeyed-taken-for-acked",
    "G1",
    "a checkpoint does not pass records that wait for their keys",
    InjectorCore.acknowledged,
    "min(self.outbound.oldest_position(scope, last + 1), self.unkeyed.oldest_position(scope, last + 1))",
    "self.outbound.oldest_position(scope, last + 1)",
    seeds=0,
    test="tests/injectors/test_core.py::test_nothing_overtakes_a_record_that_waits_for_its_key",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "older-routings",
    "G1",
    "an older routing changes nothing",
    InjectorCore,
    "routing.revision < self.routing.revision",
    "routing.revision < 0",
    seeds=0,
    test="tests/injectors/test_core_routing.py::test_an_older_routing_changes_nothing",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "positions-twice",
    "G1",
    "a position is accepted once",
    InjectorCore.check_positions,
    "if ids[0] <= before or not",
    "if ids[0] < before or not",
    seeds=0,
    test="tests/injectors/test_core.py::test_positions_must_rise_for_a_mark_passes_what_is_not_there",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "rehoused-unsorted",
    "G1",
    "positions rise within a batch, also where two intervals' records meet",
    Rerouting,
    "        rows.sort(key=lambda row: row[0])",
    "        rows.sort(key=lambda row: -row[0])",
    seeds=0,
    test="tests/injectors/test_core_routing.py::test_a_split_regroups_unacked_records_with_rising_positions",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "filling-holds-nothing",
    "G7",
    "records that are not sent yet hold the injector's watermark",
    OutboundQueues.oldest_timestamp,
    "*(queue.filling.held for queue in self._filling if queue.filling)",
    "*()",
    seeds=0,
    test="tests/injectors/test_core_model.py::test_every_record_arrives_once_and_holds_the_watermark",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "left-held-by-the-newest",
    "G7",
    "what is left of a batch holds the watermark at its oldest record",
    OutboundBatch.measure,
    "min(stamps[index] for index in self.waiting)",
    "max(stamps[index] for index in self.waiting)",
    seeds=0,
    test="tests/injectors/test_core.py::test_part_of_a_batch_holds_the_watermark_at_its_own_oldest",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "batches-held-by-the-newest",
    "G7",
    "a batch holds the watermark at its oldest record",
    InjectedBatch.extend,
    "min(self.held, oldest)",
    "max(self.held, oldest)",
    seeds=0,
    test="tests/injectors/test_core_model.py::test_every_record_arrives_once_and_holds_the_watermark",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "partial-answers-whole",
    "G1",
    "an ACK of a part leaves the rest un-ACKed",
    DeliveryAttempt.answered,
    "kind is AnswerKind.ACKED and indexes",
    "False",
    seeds=0,
    test="tests/injectors/test_core.py::test_an_ack_with_remaining_records_keeps_only_those",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "former-owners-trusted",
    "G8",
    "what is on its way to a former owner is sent to the new one at once",
    Rerouting.reroute,
    "self._outbound.recall(queue)",
    "pass",
    seeds=0,
    test="tests/injectors/test_core_routing.py::test_a_refusal_by_a_former_owner_is_retried_on_a_new_routing",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "marks-past-the-unsent",
    "G1",
    "a mark stops at a batch of which nothing is ACKed",
    OutboundQueue.mark,
    "return batch.ids[batch.indexes()[0]], listed",
    "return batch.ids[-1], listed",
    seeds=0,
    test="tests/injectors/test_core.py::test_a_mark_passes_a_stuck_record_and_lists_it",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "any-number-stuck",
    "G13",
    "a mark passes few stuck records",
    OutboundQueue.mark,
    "waiting is None or len(listed) + len(waiting) > _MAX_HOLES",
    "waiting is None",
    seeds=0,
    test="tests/injectors/test_core.py::test_a_mark_passes_no_more_stuck_records_than_can_be_listed",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "overdue-never",
    "G8",
    "a batch without an answer is sent again",
    ResendingQueues.resend_overdue,
    "since[one] <= due",
    "False",
    seeds=0,
    test="tests/injectors/test_core.py::test_a_refused_copy_of_a_record_in_flight_is_not_sent_again",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "copies-behind-the-unwritten",
    "G13",
    "no copy waits behind an attempt that is not written yet",
    ResendingQueues.resend_overdue,
    "newest.token >= unwritten.get(newest.address, self._next_token)",
    "False",
    seeds=0,
    test="tests/injectors/test_core.py::test_a_receiver_that_reads_nothing_gets_no_copies",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "first-attempts-forgotten",
    "G1",
    "an ACK of the oldest attempt counts, however many copies followed it",
    ResendingQueues,
    "self._end(batch.open_attempts[-1])",
    "self._end(batch.open_attempts[0])",
    seeds=0,
    test="tests/injectors/test_core.py::test_silence_loses_no_record_and_an_ack_of_any_copy_counts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "copies-as-often-as-at-first",
    "G13",
    "the wait before a copy doubles with each one",
    ResendingQueues,
    "min(batch.copies + 1, MAX_COPIES)",
    "0",
    seeds=0,
    test="tests/injectors/test_resending.py::test_each_record_is_acked_once_and_copies_are_bounded",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "acks-wait-for-later-ones",
    "G8",
    "an ACK that waits to go with later ones is sent soon, also if none follows",
    AckSender,
    "if self._timer is None and not self._closed:",
    "if False:",
    seeds=0,
    test="tests/client/test_subscription_acks.py::test_the_first_ack_goes_at_once_and_the_last_one_soon",
    why="a simulated subscriber goes on reading, and its next ACK says the same",
)

rewriting(
    "acks-given-up-with-their-callers",
    "G8",
    "an ACK whose caller gives up is sent soon",
    AckSender,
    "self._send_later()  # the caller",
    "pass  # the caller",
    seeds=0,
    test="tests/client/test_subscription_acks.py::test_an_ack_whose_caller_gives_up_is_sent_soon",
    why="a simulated subscriber does not give up",
)

rewriting(
    "acks-without-calls-sent",
    "G8",
    "an ACK that no call has taken counts as not sent",
    AckSender,
    "if await self._send(newest):",
    "if [await self._send(newest)]:",
    seeds=0,
    test="tests/client/test_subscription_acks.py::test_an_ack_that_no_call_takes_is_sent_later",
    why="a simulated subscriber goes on reading, and its next ACK says the same",
)

rewriting(
    "calls-begin-with-older-acks",
    "G8",
    "the first requests of a call are made when it begins, and not while its owner is looked for",
    LogLink,
    "call = await self._open(opening)",
    "made = opening(); call = await self._open(lambda: made)",
    seeds=0,
    test="tests/client/test_log_link.py::test_a_call_begins_with_what_was_acked_meanwhile",
    why="a simulated subscriber goes on reading, and its next ACK says the same",
)

rewriting(
    "acks-before-the-start",
    "G8",
    "a call takes no request before its first ones",
    LogCall.begin,
    "async with self._writing:",
    "if True:",
    seeds=0,
    test="tests/client/test_log_link.py::test_a_request_goes_after_the_first_ones",
    why="writes take no time in the simulator",
)

rewriting(
    "acks-lost-with-calls",
    "G1",
    "a new call repeats an ACK that is not durable",
    Subscription,
    "self._acks.newest > self._durable",
    "False",
    seeds=0,
    test="tests/worker/log/test_log_service.py::test_an_ack_lost_with_a_broken_call_is_repeated",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "auto-acked-early",
    "G1",
    "a batch is ACKed when the next one is asked for",
    Subscription.__anext__,
    "            self._delivered = batch.next_offset\n",
    "            self._delivered = batch.next_offset\n            await self.ack(batch.next_offset)\n",
    seeds=0,
    test="tests/worker/log/test_log_service.py::test_a_cursor_delivers_what_is_logged_and_not_yet_acked",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "silent-owners-kept",
    "G8",
    "a subscriber leaves an owner that is silent and has a successor",
    LogCall,
    "await self._moved(self._address) and ",
    "False and ",
    seeds=0,
    test="tests/worker/log/test_log_service.py::test_a_subscriber_leaves_a_paused_owner_for_its_successor",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "reconnects-silent",
    "G8",
    "a new report stream begins with every report",
    ReportStream,
    "refresh_at = self._now()\n    while",
    "refresh_at = self._now() + self._refresh\n    while",
    seeds=0,
    test="tests/authority/test_report_stream.py::test_a_new_stream_begins_with_every_report",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "refusals-of-others",
    "G8",
    "a refusal of an older sequencer leaves the present one alone",
    ReportStream,
    "        and newest.sequencer == report.sequencer\n",
    "",
    seeds=0,
    test="tests/authority/test_report_stream.py::test_an_old_sequencers_refusal_leaves_the_reported_one_alone",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "closed-link-reports",
    "G8",
    "a link that is closed does not report its end for a new link to the same address",
    DeliveryConnection,
    "if not self._closed:",
    "if True:",
    seeds=0,
    test="tests/injectors/test_cut_short.py::test_a_link_that_is_closed_reports_nothing_more",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "cancelled-link-ends",
    "G8",
    "a link goes on when gRPC cancels its call",
    DeliveryConnection,
    'why = "gRPC has cancelled the call"',
    "raise",
    seeds=0,
    test="tests/injectors/test_cut_short.py::test_a_link_whose_call_is_cancelled_by_grpc_connects_again",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "reports-refreshed-never",
    "G8",
    "reports are repeated from time to time",
    ReportStream,
    "if self._now() >= refresh_at:",
    "if False:",
    seeds=0,
    test="tests/authority/test_report_stream.py::test_reports_are_repeated_though_nothing_changes",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
