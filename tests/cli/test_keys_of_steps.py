"""What ``key inspect`` says of steps whose keys are not the user's."""

from __future__ import annotations

import re

import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.client.step_keys import own_keys
from millwheel.sdk.plan import Plan
from millwheel.sdk.spec import build_spec
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_767_268_800_000_000)


async def located(user: str) -> str:
    raise ConnectionError(user)


def program() -> mw.Topology:
    topology = mw.Topology("visits")
    visits = topology.source("visits", str)
    visits.enrich("spread", located, str, concurrency=16)
    users = visits.key_by(lambda user: user)
    users.enrich("located", located, str, concurrency=16)
    users.window(windows.tumbling(mw.hours(1))).aggregate("counts", agg.count(), spread=4)
    users.update("seen", 0, lambda seen, _: (seen + 1, [seen]), int)
    visits.flat_map(lambda user: [user], str).named("words")
    return topology


def said(plan: Plan, computation: str, key: str) -> str | None:
    spec, _ = build_spec(plan)
    return own_keys(next(one for one in spec.computations if one.name == computation), key)


def test_a_users_key_of_enrich_leads_to_the_key_that_waits() -> None:
    """Regression: the user's key had no state and no pending record, although its records waited."""
    topology = program()
    shown = said(topology.plan(), "located", "ann")
    assert shown is not None
    found = re.search(r"has the keys 0 to 15, by a hash of .*: records of 'ann' are under the key (\d+)$", shown)
    assert found is not None
    alone = mw.Topology("visits")
    alone.source("visits", str).key_by(lambda user: user).enrich("located", located, str, concurrency=16)
    harness = TopologyHarness(alone)
    with pytest.raises(ConnectionError, match="ann") as raised:
        harness.send("visits", "ann", NOON)
    harness.close()
    assert f"computation 'located', key '{found[1]}'" in raised.value.__notes__[0]


def test_steps_with_keys_of_their_own_say_so() -> None:
    plan = program().plan()
    assert said(plan, "spread", "ann") == "spread has the keys 0 to 15, by a hash of the record"
    assert said(plan, "counts-partial", "ann") == (
        "counts-partial has keys as '0|ann': the records of a key are spread over parts 0 to 3"
    )
    assert said(plan, "words", "ann") == "words has keys of its own, by a hash of the record"
    assert said(plan, "seen", "ann") is None
    assert said(plan, "counts", "ann") is None
