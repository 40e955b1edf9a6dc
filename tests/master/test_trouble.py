"""What hampers a process is a problem of the cluster's health that names the process and says what to do."""

from __future__ import annotations

import pytest

from millwheel.master.leader_changes import INTERRUPTED, interruption_text, leader_problems
from millwheel.master.trouble import (
    link_problems,
    node_problems,
    slow_store_problems,
    stall_problems,
    write_problems,
)
from millwheel.model.time import Timestamp, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.cluster_pb2 import WorkerHealth
from millwheel.rpc.v1.inspection_pb2 import BrokenLink, GetWorkerLoadResponse

NODE = "10.0.0.3:9042"


def worker(name: str, *links: BrokenLink, stalled: float = 0.0, answers: bool = True) -> WorkerHealth:
    address = f"{name}:7450"
    return WorkerHealth(
        worker_id=name, address=address, stalled=stalled, broken_links=links, answers=answers, intervals=3
    )


def test_a_worker_that_does_not_get_to_run_is_named() -> None:
    (problem,) = stall_problems([worker("w1", stalled=0.85), worker("w2", stalled=0.2)])
    assert problem.startswith("worker w1 at w1:7450 is slow: it did not get to run for 85% of the last 10 s")
    assert "`systemctl stop millwheel-worker`" in problem


def test_a_slow_worker_without_intervals_need_not_stop() -> None:
    """Regression: balancing had moved its intervals, and the remedy was still to stop it for them."""
    slow = worker("w1", stalled=0.85)
    slow.intervals = 0
    (problem,) = stall_problems([slow])
    assert "`systemctl stop" not in problem
    assert "it has no intervals any more" in problem


def test_a_leading_master_that_does_not_get_to_run_is_named() -> None:
    """Regression: health said that all is well while MillwheelProcessSlow fired for the leading master."""
    (problem,) = stall_problems([], "m1:7433", 0.34)
    assert problem.startswith("the leading master at m1:7433 is slow: it did not get to run for 34% of the last 10 s")
    assert list(stall_problems([], "m1:7433", 0.2)) == []


def test_a_slow_store_is_named() -> None:
    (problem,) = slow_store_problems(2.34)
    assert problem.startswith("a commit takes 2.3 s at the store on average")
    assert list(slow_store_problems(0.9)) == []


def test_a_cut_link_between_workers_names_both() -> None:
    cut, brief = BrokenLink(worker_id="w2", seconds=40), BrokenLink(worker_id="w1", seconds=4)
    (problem,) = link_problems([worker("w1", cut), worker("w2", brief)], {})
    assert problem.startswith("worker w1 has not reached worker w2 at w2:7450 for 40 s. Mend the network between them")


def test_a_node_that_the_master_misses_is_down() -> None:
    link = BrokenLink(store_node=NODE, seconds=40)
    outages = {NODE: 41.0, "10.0.0.1:9042": 0.0}
    workers = [worker("w1", link), worker("w2", link)]
    assert list(link_problems(workers, outages)) == []
    (problem,) = node_problems(workers, outages)
    assert problem.startswith(
        f"node {NODE} of the store has not answered for 41 s. The work goes on while each range has"
    )
    assert problem.index("`df -h`") < problem.index("`systemctl start cassandra`")


def test_a_node_that_one_worker_misses_is_behind_a_cut_link() -> None:
    (problem,) = link_problems([worker("w1", BrokenLink(store_node=NODE, seconds=40)), worker("w2")], {NODE: 0.0})
    assert problem.startswith(f"worker w1 has not reached node {NODE} of the store for 40 s, and the master does")


def test_a_node_that_many_workers_miss_is_named_alone() -> None:
    workers = [worker(f"w{number}", BrokenLink(store_node=NODE, seconds=40)) for number in range(1_000)]
    (problem,) = link_problems(workers, {NODE: 0.0})
    assert problem.startswith("workers w0, w1, w10, w100, w101 and 995 more have not reached node 10.0.0.3:9042")
    assert "stop" not in problem


def test_a_node_that_only_the_master_misses_is_not_down() -> None:
    outages, silent = {NODE: 41.0}, worker("w2", answers=False)
    assert list(node_problems([worker("w1"), silent], outages)) == []
    (problem,) = link_problems([worker("w1"), silent], outages)
    assert problem.startswith(f"the leading master has not reached node {NODE} of the store for 41 s, and the workers")
    assert list(link_problems([silent], outages)) == []
    assert len(list(node_problems([silent], outages))) == 1, "no report says that it runs"


@pytest.mark.parametrize("outwards", [False, True])
def test_a_worker_that_is_cut_off_is_named_alone(outwards: bool) -> None:
    others = [f"w{number}" for number in range(1, 1_000)]
    if outwards:
        workers = [worker("w0", *(BrokenLink(worker_id=one, seconds=40) for one in others)), *map(worker, others)]
    else:
        workers = [worker("w0"), *(worker(one, BrokenLink(worker_id="w0", seconds=40)) for one in others)]
    (problem,) = link_problems(workers, {})
    assert problem.startswith(
        "worker w0 at w0:7450 and workers w1, w10, w100, w101, w102 and 994 more have not reached"
    )
    assert "or stop worker w0" in problem
    assert problem.count("stop worker") == 1


def test_a_network_in_two_halves_has_few_problems() -> None:
    here, there = ([f"{side}{number:03}" for number in range(200)] for side in "ab")
    workers = [worker(one, *(BrokenLink(worker_id=other, seconds=40) for other in there)) for one in here]
    workers += [worker(one, *(BrokenLink(worker_id=other, seconds=40) for other in here)) for one in there]
    *named, rest = link_problems(workers, {})
    assert len(named) == 20
    assert all("is cut off" in one for one in named)
    assert rest == "72,000 more links between workers are cut: mend the network, and look again"


def test_an_old_report_accuses_nobody() -> None:
    link = BrokenLink(worker_id="w2", seconds=40)
    workers = [worker("w1", link, stalled=0.9, answers=False), worker("w2")]
    assert [*link_problems(workers, {}), *stall_problems(workers)] == []


def test_a_takeover_is_no_broken_link() -> None:
    assert list(link_problems([worker("w1", BrokenLink(worker_id="w2", seconds=6))], {NODE: 6.0})) == []
    assert list(node_problems([], {NODE: 6.0})) == []


def test_writes_that_fail_name_the_workers_and_the_error() -> None:
    full = GetWorkerLoadResponse(
        repeating_journals=3, repeating_seconds=70, repeating_error="IO error: No space left on device"
    )
    loads = {"w1": full, "w2": full, "w3": GetWorkerLoadResponse(repeating_journals=1, repeating_seconds=2)}
    (problem,) = write_problems(loads)
    assert problem.startswith("intervals have waited for the store for 1 min 10 s, 3 of worker w1, 3 of worker w2: IO")
    assert "free space on that disk" in problem


def test_writes_without_an_answer_have_the_disk_looked_at() -> None:
    error = "the store does not answer. It is tried again until it answers."
    load = GetWorkerLoadResponse(repeating_journals=3, repeating_seconds=70, repeating_error=error)
    (problem,) = write_problems({"w1": load})
    assert ".:" not in problem
    assert "`df -h`" in problem
    assert "SIGBUS" in problem


def test_many_errors_of_many_workers_have_a_bound() -> None:
    def load(error: str) -> GetWorkerLoadResponse:
        return GetWorkerLoadResponse(repeating_journals=1, repeating_seconds=70, repeating_error=error)

    (problem,) = write_problems({f"w{number}": load("no answer") for number in range(1_000)})
    assert "1 of worker w101 and 995 more: no answer" in problem
    assert len(list(write_problems({f"w{number}": load(f"node {number}") for number in range(1_000)}))) == 20


def elections(*ages: float) -> list[catalog.EventRecord]:
    now = seconds(10_000)
    return [catalog.EventRecord(kind="master.elected", at_us=now - seconds(age)) for age in ages]


def test_a_leader_that_changes_often_has_its_reason() -> None:
    now = Timestamp(seconds(10_000))
    paused = catalog.MasterRecord(
        address="m1", interrupted_at_us=now - seconds(60), interruption="its process did not get to run for 4.2 s"
    )
    begun = catalog.MasterRecord(address="m2", started_at_us=now - seconds(30))
    steady = catalog.MasterRecord(address="m3", started_at_us=now - seconds(9_000))
    events = elections(5_000, 300, 200, 100)
    (problem,) = leader_problems(events, {"m1": paused, "m2": begun, "m3": steady}, now)
    assert problem.startswith("the leading master has changed 3 times within 15 min: m1 lost its lease at 02:45:40 UTC")
    assert "its process did not get to run for 4.2 s; m2 was started at 02:46:10 UTC. Set `lease" in problem
    assert "m3" not in problem
    assert "`lease_seconds = 15` (default: 3) under `[master]`" in problem
    assert problem.endswith("This problem ends by itself after 5 min without a change")


def test_restarts_after_the_mend_ask_for_nothing_more() -> None:
    """Regression: after the restarts that it asked for, health forgot the causes, and asked for them again."""
    now = Timestamp(seconds(10_000))
    paused = catalog.MasterRecord(interrupted_at_us=now - seconds(100), interruption="it did not get to run")
    text = interruption_text("m1", paused)
    lost = catalog.EventRecord(kind=INTERRUPTED, subject="m1", text=text, at_us=now - seconds(99))
    events = [*elections(5_000, 300, 200), lost, *elections(50)]
    old = catalog.MasterRecord(address="m1", started_at_us=now - seconds(9_000))
    (problem,) = leader_problems(events, {"m1": old}, now)
    assert "`lease_seconds = 15`" in problem
    new = catalog.MasterRecord(address="m1", started_at_us=now - seconds(50))
    (problem,) = leader_problems(events, {"m1": new}, now)
    assert text in problem, "the cause is still known"
    assert "All that lost a lease were restarted since: if that was the mend, wait. This problem ends" in problem
    assert "lease_seconds" not in problem


def test_masters_that_end_have_their_logs_read() -> None:
    now = Timestamp(seconds(10_000))
    begun = catalog.MasterRecord(address="m2", started_at_us=now - seconds(30))
    (problem,) = leader_problems(elections(5_000, 300, 200, 100), {"m2": begun}, now)
    assert "m2 was started at 02:46:10 UTC. See the logs of those that you did not restart" in problem


def test_a_restart_of_all_masters_is_no_problem() -> None:
    now = Timestamp(seconds(10_000))
    assert list(leader_problems(elections(5_000, 200, 100), {}, now)) == []
    assert list(leader_problems(elections(5_000, 500, 400, 350, 310), {}, now)) == []
    assert list(leader_problems(elections(5_000, 4_000, 3_000, 2_000, 100), {}, now)) == []
