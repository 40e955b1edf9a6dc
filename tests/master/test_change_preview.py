"""What a change would do: the same as what it then does, and a request that holds only for what was shown."""

from __future__ import annotations

import pytest

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import interval_pb2 as wire
from tests.master.test_interval_service import Cluster, named
from tests.master.test_interval_service import cluster as cluster

PLAN = "/millwheel.v1.IntervalService/PlanIntervalChange"


async def plan(client: ControlClient, **change: object) -> wire.PlanIntervalChangeResponse:
    request = wire.PlanIntervalChangeRequest(**change)  # type: ignore[arg-type]
    return await client.call(PLAN, request, wire.PlanIntervalChangeResponse)


async def test_a_move_goes_to_the_worker_that_was_shown(cluster: Cluster) -> None:
    before = await cluster.first()
    (other,) = set(cluster.workers) - {before.owner.worker_id}
    shown = await plan(cluster.client, move=wire.MoveIntervalRequest(interval=named(before.journal)))
    assert (shown.move.worker_id, shown.after[0].worker_id) == (other, other)
    assert shown.effects[0].endswith(f"from {before.owner.worker_id} to {other}.")
    assert (await cluster.first()) == before
    assert all(not worker.received for worker in cluster.workers.values()), "no owner is notified of a plan"
    moved = await cluster.client.call(
        "/millwheel.v1.IntervalService/MoveInterval", shown.move, wire.MoveIntervalResponse
    )
    assert moved.interval.owner.worker_id == other
    with pytest.raises(RequestError) as caught:
        await cluster.client.call("/millwheel.v1.IntervalService/MoveInterval", shown.move, wire.MoveIntervalResponse)
    assert (caught.value.code, caught.value.reason) == (FailureCode.ABORTED, "SEQUENCER_CHANGED")


async def test_a_split_names_the_key_that_halves_the_load(cluster: Cluster) -> None:
    for worker in cluster.workers.values():
        worker.sample = {b" a": 0.4, b"!b": 0.6}
    before = await cluster.first()
    await cluster.all_listed(lambda one: bool(one.load.sample))
    shown = await plan(cluster.client, split=wire.SplitIntervalRequest(interval=named(before.journal)))
    assert shown.split.at == b"!b"
    assert [one.worker_id for one in shown.after] == [before.owner.worker_id] * 2
    assert shown.effects[1] == "The smaller half gets about 40% of the load."
    made = await cluster.client.split_interval(named(before.journal), shown.split.at)
    assert [one.keys for one in made] == [one.keys for one in shown.after]


async def test_a_merge_says_which_keys_change_their_owner(cluster: Cluster) -> None:
    before = await cluster.first()
    (other,) = set(cluster.workers) - {before.owner.worker_id}
    merge = wire.MergeIntervalsRequest(interval=named(before.journal), worker_id=other)
    shown = await plan(cluster.client, merge=merge)
    assert (len(shown.before), [one.worker_id for one in shown.after]) == (2, [other])
    moving = [one for one in shown.before if one.worker_id != other]
    assert sum(" move from " in text for text in shown.effects) == len(moving)


async def test_a_plan_without_a_change_names_the_field(cluster: Cluster) -> None:
    with pytest.raises(RequestError, match="`change`") as caught:
        await plan(cluster.client)
    assert caught.value.code is FailureCode.INVALID_ARGUMENT
