"""Mutations of conditions and the order of awaits in masters and authorities, at store and coordinator (section 7)."""

from __future__ import annotations

from millwheel.authority import writer
from millwheel.authority.shard import AuthorityShard
from millwheel.coordination.etcd.coordinator import EtcdCoordinator
from millwheel.coordination.etcd.renewal_schedule import RenewalSchedule
from millwheel.coordination.loop_clock import LoopClock
from millwheel.master.successors import successor_of
from millwheel.master.term import Term
from millwheel.server import cluster_settings
from millwheel.store.repetition import RetriedCalls
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "asked-after-the-term",
    "G8",
    "a request to a term that is over is refused",
    Term.ask,
    "if self.is_over:",
    "if False:",
    seeds=0,
    test="tests/master/test_term.py::test_what_a_term_was_asked_is_refused_when_it_ends",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "unanswered-requests",
    "G8",
    "requests that wait are refused when the term ends",
    Term,
    "            future.set_exception(_over())",
    "            pass",
    seeds=0,
    test="tests/master/test_term.py::test_what_a_term_was_asked_is_refused_when_it_ends",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "looks-once",
    "G8",
    "a draining topology is looked at again and again",
    Term,
    "self._observing.discard(topology)",
    "pass",
    seeds=0,
    test="tests/master/test_term.py::test_a_draining_topology_is_looked_at_again_and_again",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "ready-unread",
    "G11",
    "a term answers when it has read the catalog",
    Term,
    "            snapshot = await",
    "            self._ready.set()\n            snapshot = await",
    seeds=0,
    test="tests/master/test_term.py::test_a_term_is_ready_when_it_has_read_the_catalog",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "removed-though-alive",
    "G7",
    "a delayed removal leaves a life that began since alone",
    AuthorityShard.remove,
    "if up_to and self._core.outlives(group, up_to):",
    "if False:",
    seeds=0,
    test="tests/authority/test_shard.py::test_a_delayed_removal_spares_an_injector_that_is_back",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "stopped-yet-accepting",
    "G3",
    "a shard that has stopped takes no reports",
    AuthorityShard.report,
    "    self._check()\n    self._metrics",
    "    self._metrics",
    seeds=0,
    test="tests/authority/test_shard.py::test_a_deposed_shard_stops_and_never_broadcasts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "successors-append-taken",
    "G3",
    "a refusal by a successor is no success of the authority's append",
    RetriedCalls.append,
    "if not uncertain or (error.sequencer, error.commit) != (append.sequencer, append.commit):",
    "if not uncertain:",
    seeds=0,
    test="tests/authority/test_shard.py::test_a_lost_answer_is_no_success_if_another_process_appended",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "authority-first-entry-unread",
    "G7",
    "a restart reads the first entry after the base",
    writer.read_core,
    "range(head.truncation_point + 1,",
    "range(head.truncation_point + 2,",
    seeds=0,
    test="tests/authority/test_shard.py::test_a_deposed_shard_stops_and_never_broadcasts",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "standstills-counted",
    "G8",
    "a standstill of the whole loop ends no lease of a coordinator within the process",
    LoopClock.__call__,
    "min(self._clock() - self._beaten, _MAX_GAP_SECONDS)",
    "(self._clock() - self._beaten)",
    seeds=0,
    test="tests/coordination/test_loop_clock.py::test_a_step_longer_than_the_lease_ends_no_lease",
    why="the simulator runs the coordinator by a clock of its own, as a cluster's; the test shows it in seconds",
)

rewriting(
    "late-renewal-counted",
    "G8",
    "a renewal counts only if its holder reads the answer within the lease",
    EtcdCoordinator.keep_alive,
    "await self._renew(lease)",
    "return await self._renew(lease)",
    seeds=0,
    test="tests/coordination/test_etcd.py::test_a_renewal_that_is_read_too_late_does_not_count",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "renewed-for-ever",
    "G8",
    "a lease whose holder stands still is renewed for one time to live and no more",
    RenewalSchedule.ask,
    "now, now + ttl",
    "now, now + 1e9",
    seeds=0,
    test="tests/coordination/test_renewals.py::test_a_holder_that_stands_is_renewed_for_one_lease",
    why="the simulator runs the leases of its etcd without this thread; the test shows it in seconds",
)

rewriting(
    "newer-format-served",
    "G1",
    "a process serves only in a cluster of a format that it knows",
    cluster_settings,
    "if stored > NEWEST_FORMAT:",
    "if stored > NEWEST_FORMAT + 1:",
    seeds=0,
    test="tests/daemons/test_cluster_settings.py::test_a_cluster_of_a_format_that_is_unknown_is_refused",
    why="the simulator has one version; the test shows it by itself, in seconds",
)

rewriting(
    "newer-fields-lost",
    "G11",
    "a record that replaces others keeps the fields of a newer version",
    successor_of,
    "kept.MergeFrom(record)",
    "pass",
    seeds=0,
    test="tests/master/test_newer_fields.py::test_a_merge_keeps_newer_fields_of_both_parents",
    why="the simulator has one version; the test shows it by itself, in seconds",
)
