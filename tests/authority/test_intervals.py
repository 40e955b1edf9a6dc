"""A group's watermark over its key intervals (G4, G7, G8; sections 4.5, 6.2, 7.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.messages import AppendJournaled, BroadcastValues
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import AcceptRefusedError
from tests.authority.shard import AT_ONCE, GROUP, Shard, cut

LEFT, RIGHT = cut(b"m")
IDLE = 100
"""The time until changes are appended for which nothing waits."""


@pytest.mark.guarantee("G7", section="7.2")
def test_unknown_computation_is_minus_infinity() -> None:
    shard = Shard()
    assert shard.core.broadcast("nobody.1") == MIN_TIMESTAMP
    assert shard.core.explain("nobody.1", 0) is None
    assert shard.core.sequencers("nobody.1") == []


@pytest.mark.guarantee("G13", section="7.2")
def test_a_group_is_not_cut_into_any_number_of_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.authority.keyed.MAX_MEMBERS", 3)
    group = KeyedGroup(GROUP)
    inner = KeyInterval(b"b", b"c")
    group.accept(inner, 1)
    for more in (KeyInterval(b"d", b"e"), KeyInterval(b"b", b"bb")):
        with pytest.raises(AcceptRefusedError, match="has 3 members already"):
            group.accept(more, 2)
    group.accept(inner, 2)
    group.accept(KeyInterval(b"c", None), 3)
    group.accept(ALL_KEYS, 4)
    assert [state.member for state in group.states()] == [ALL_KEYS]


@pytest.mark.guarantee("G7", section="7.2")
def test_a_missing_interval_holds_the_value_at_minus_infinity() -> None:
    shard = Shard()
    shard.accept(LEFT, 1)
    assert shard.report(LEFT, 1, 100) == MIN_TIMESTAMP
    shard.accept(RIGHT, 2)
    assert shard.known() == MIN_TIMESTAMP
    assert shard.report(RIGHT, 2, 70) == 70


@pytest.mark.guarantee("G7", section="7.2")
def test_the_value_is_the_minimum_over_all_intervals() -> None:
    shard = Shard()
    for keys, sequencer in shard.own_all(cut(b"c", b"m", b"t")):
        shard.report(keys, sequencer, 100 + sequencer)
    assert shard.known() == 101
    assert shard.report(cut(b"c")[0], 1, MAX_TIMESTAMP) == 102


@pytest.mark.guarantee("G4", section="6.2")
def test_a_report_before_acceptance_counts_for_nothing() -> None:
    shard = Shard()
    shard.own_all()
    (refusal,) = shard.say(ALL_KEYS, 2, 500)
    assert not refusal.superseded
    (refusal,) = shard.say(ALL_KEYS, 2, 500, "stranger.3")
    assert not refusal.superseded
    (refusal,) = shard.say(LEFT, 1, 500)
    assert not refusal.superseded, "the sequencer was accepted for other keys"
    shard.flush()
    assert shard.known() == MIN_TIMESTAMP


@pytest.mark.guarantee("G4", section="6.2")
def test_a_zombies_report_is_refused_once_another_is_accepted() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)
    assert shard.accept(ALL_KEYS, 2) == 10
    (refusal,) = shard.say(ALL_KEYS, 1, 1_000)
    assert refusal.superseded
    shard.flush()
    assert shard.known() == 10
    assert shard.report(ALL_KEYS, 2, 20) == 20


@pytest.mark.guarantee("G4")
def test_a_zombie_is_refused_before_the_acceptance_is_journaled() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)
    token = shard.begin_accept(ALL_KEYS, 2)
    assert shard.say(ALL_KEYS, 1, 1_000)[0].superseded
    assert token not in shard.answers
    shard.flush()
    assert shard.answers[token] == 10


@pytest.mark.guarantee("G4", section="7.2")
def test_acceptance_is_answered_only_when_journaled() -> None:
    shard = Shard(pace=replace(AT_ONCE, idle=IDLE))
    token = shard.begin_accept(ALL_KEYS, 1)
    assert shard.core.next_deadline() == shard.now
    shard.append()
    assert token not in shard.answers
    shard.restart()
    assert shard.report(ALL_KEYS, 1, 5) == 5, "what was journaled holds after a restart"


@pytest.mark.guarantee("G4")
def test_an_acceptance_overlapping_a_larger_sequencer_is_refused() -> None:
    shard = Shard()
    shard.accept(RIGHT, 7)
    for keys, sequencer in ((ALL_KEYS, 6), (KeyInterval(b"l", b"n"), 6), (RIGHT, 6), (ALL_KEYS, 7)):
        with pytest.raises(AcceptRefusedError, match="sequencer 7 holds"):
            shard.begin_accept(keys, sequencer, GROUP)
    assert shard.core.sequencers(GROUP) == [(RIGHT, 7)]


@pytest.mark.guarantee("G4")
def test_a_repeated_acceptance_is_answered_and_changes_nothing() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 33)
    assert shard.accept(ALL_KEYS, 1) == 33
    assert shard.report(ALL_KEYS, 1, 34) == 34
    shard.restart()
    assert shard.report(ALL_KEYS, 1, 35) == 35


@pytest.mark.guarantee("G7", section="7.2")
def test_children_of_a_split_inherit_their_parents_value() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 50)
    assert shard.accept(LEFT, 2) == 50
    assert shard.say(ALL_KEYS, 1, 1_000)[0].superseded, "the parent has lost some of its keys"
    assert shard.accept(RIGHT, 3) == 50
    assert shard.report(LEFT, 2, 90) == 50
    assert shard.report(RIGHT, 3, 80) == 80
    assert shard.accept(KeyInterval(b"", b"c"), 4) == 90, "its parent's value, not the group's"


@pytest.mark.guarantee("G7", section="7.2")
def test_a_cut_intervals_rest_keeps_its_value_until_owned() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 50)
    shard.accept(KeyInterval(b"g", b"p"), 2)
    assert shard.report(KeyInterval(b"g", b"p"), 2, 99) == 50
    shard.accept(KeyInterval(b"", b"g"), 3)
    shard.report(KeyInterval(b"", b"g"), 3, 99)
    assert shard.known() == 50
    shard.accept(KeyInterval(b"p"), 4)
    assert shard.report(KeyInterval(b"p"), 4, 70) == 70


@pytest.mark.guarantee("G7", section="7.2")
def test_a_merged_interval_starts_from_the_smaller_value() -> None:
    shard = Shard()
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 10)
    shard.report(RIGHT, 2, 90)
    assert shard.accept(ALL_KEYS, 3) == 10
    assert shard.report(ALL_KEYS, 3, 60) == 60


@pytest.mark.guarantee("G7", section="4.5")
def test_a_lower_report_never_lowers_what_was_broadcast() -> None:
    shard = Shard()
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 100)
    shard.report(RIGHT, 2, 200)
    assert shard.report(LEFT, 1, 40) == 100
    assert shard.report(RIGHT, 2, 40) == 100
    assert shard.report(LEFT, 1, 150) == 100, "the right interval's lower report stands, but for what was broadcast"
    assert shard.report(RIGHT, 2, 140) == 140


@pytest.mark.guarantee("G7")
def test_a_lower_report_counts_if_nothing_larger_was_broadcast() -> None:
    shard = Shard()
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 100)
    shard.report(LEFT, 1, 60)
    assert shard.report(RIGHT, 2, 500) == 60


@pytest.mark.guarantee("G7")
def test_a_new_owner_that_knows_less_does_not_lower_the_value() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 100)
    shard.accept(ALL_KEYS, 2)
    assert shard.report(ALL_KEYS, 2, MIN_TIMESTAMP) == 100
    assert shard.report(ALL_KEYS, 2, 101) == 101


@pytest.mark.guarantee("G7", section="7.2")
def test_a_value_is_broadcast_only_when_journaled() -> None:
    shard = Shard()
    shard.own_all()
    shard.say(ALL_KEYS, 1, 100)
    assert shard.core.broadcast(GROUP) == MIN_TIMESTAMP
    shard.append()
    assert shard.core.broadcast(GROUP) == MIN_TIMESTAMP
    shard.say(ALL_KEYS, 1, 120)
    assert shard.next_append() is None, "one append is in flight at a time"
    effects = shard.post(AppendJournaled())
    values = [one.values for one in effects if isinstance(one, BroadcastValues)]
    assert values == [{GROUP: 100}], "what came during the append is not in it"
    assert shard.core.broadcast(GROUP) == 100
    shard.perform(effects)
    shard.flush()
    assert shard.known() == 120


@pytest.mark.guarantee("G8")
def test_a_report_that_moves_nothing_is_not_urgent_and_not_lost() -> None:
    shard = Shard(pace=replace(AT_ONCE, idle=IDLE))
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 10)
    shard.report(RIGHT, 2, 20)
    shard.say(RIGHT, 2, 30)
    assert shard.core.next_deadline() == shard.now + IDLE
    shard.now += IDLE
    shard.flush()
    shard.restart()
    assert shard.report(LEFT, 1, 100) == 30


@pytest.mark.paper(section="7.2")
def test_an_append_carries_only_what_changed() -> None:
    shard = Shard()
    shard.own_all(cut(*(b"%03d" % n for n in range(1, 200))))
    for keys, sequencer in shard.core.sequencers(GROUP):
        shard.say(keys, sequencer, 10)
    shard.flush()
    shard.say(KeyInterval(b"050", b"051"), 51, 20)
    append = shard.next_append()
    assert append is not None
    assert len(append.entry) < 100
    shard.post(AppendJournaled())
    shard.say(KeyInterval(b"050", b"051"), 51, 20)
    assert shard.next_append() is None, "nothing changed"


@pytest.mark.guarantee("G8")
def test_explain_names_the_interval_and_what_holds_it() -> None:
    shard = Shard()
    shard.own_all([LEFT, RIGHT])
    shard.report(LEFT, 1, 10, input_watermark=99, hold=HoldKind.HOLD_KIND_TIMER, subject="britney")
    shard.now = 3_000_000
    shard.report(RIGHT, 2, 20, hold=HoldKind.HOLD_KIND_INPUT, subject="queries")
    answer = shard.core.explain(GROUP, 5_000_000)
    assert answer is not None
    assert (answer.watermark, answer.holding_count, answer.row_count) == (10, 1, 2)
    (row,) = answer.holding
    assert (row.member, row.sequencer, row.watermark, row.input_watermark) == (LEFT, 1, 10, 99)
    assert (row.hold, row.subject, row.silence) == (HoldKind.HOLD_KIND_TIMER, "britney", 5_000_000)
    assert [other.subject for other in answer.rows] == ["britney", "queries"]


@pytest.mark.guarantee("G8")
def test_explain_names_silent_owners_and_since_when() -> None:
    shard = Shard()
    shard.own_all([LEFT])
    shard.report(LEFT, 1, 10, hold=HoldKind.HOLD_KIND_RECORD, subject="k")
    answer = shard.core.explain(GROUP, 0)
    assert answer is not None
    assert [(row.member, row.sequencer, row.hold, row.silence) for row in answer.holding] == [
        (RIGHT, 0, HoldKind.HOLD_KIND_SILENT, None)
    ], "keys that never had an owner"
    shard.accept(RIGHT, 2)
    shard.report(RIGHT, 2, 500)
    answer = shard.core.explain(GROUP, 31_000_000)
    assert answer is not None
    assert [(row.hold, row.subject, row.silence) for row in answer.holding] == [
        (HoldKind.HOLD_KIND_SILENT, "k", 31_000_000)
    ]
    shard.accept(LEFT, 3)
    answer = shard.core.explain(GROUP, 1_000_000)
    assert answer is not None
    assert (answer.holding[0].hold, answer.holding[0].silence) == (HoldKind.HOLD_KIND_SILENT, None), "a fresh owner"


def test_explain_is_truncated_at_its_limit_and_marked_so() -> None:
    shard = Shard()
    shard.own_all(cut(b"a", b"b", b"c"))
    answer = shard.core.explain(GROUP, 0, limit=2)
    assert answer is not None
    assert (len(answer.rows), len(answer.holding), answer.row_count, answer.holding_count) == (2, 2, 4, 4)


@pytest.mark.guarantee("G8", section="7.2")
def test_a_delayed_report_does_not_undo_a_newer_one() -> None:
    shard = Shard()
    left, right = shard.own_all([LEFT, RIGHT])
    shard.say(*left, 50, number=2)
    assert shard.say(*left, 20, number=1) == []
    assert shard.report(*right, 60, number=1) == 50


def test_a_removed_computation_is_dropped_and_its_rest_refused() -> None:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)
    shard.say(ALL_KEYS, 1, 20)
    shard.remove(GROUP)
    assert shard.core.broadcasts() == {}
    for _ in range(2):
        assert shard.core.broadcast(GROUP) == MIN_TIMESTAMP
        assert shard.say(ALL_KEYS, 1, 30)[0].superseded
        with pytest.raises(AcceptRefusedError, match="was removed"):
            shard.begin_accept(ALL_KEYS, 2, GROUP)
        shard.restart()
    shard.remove("never-there.1")
