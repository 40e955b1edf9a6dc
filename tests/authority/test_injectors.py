"""An injector's watermark over its processes (G7, G8; section 5.2)."""

from __future__ import annotations

import pytest

from millwheel.authority import registry
from millwheel.authority.core import CoreSettings
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import AcceptRefusedError, ReportNotReceivedError
from tests.authority.shard import INJECTOR, Shard


def announced(*names: str, expected: tuple[str, ...] = (), settings: CoreSettings | None = None) -> Shard:
    shard = Shard(settings)
    if expected:
        shard.expect(*expected)
    for sequencer, name in enumerate(names, start=1):
        shard.accept(name, sequencer, INJECTOR)
    return shard


def holding(shard: Shard) -> list[tuple[str, int]]:
    answer = shard.core.explain(INJECTOR, shard.now)
    assert answer is not None
    return [(str(row.member), row.hold) for row in answer.holding]


@pytest.mark.guarantee("G7", section="5.2")
def test_without_processes_nothing_is_known() -> None:
    shard = Shard()
    shard.expect()
    assert shard.known(INJECTOR) == MIN_TIMESTAMP


@pytest.mark.guarantee("G7", section="5.2")
def test_without_an_expected_set_every_announced_process_counts() -> None:
    shard = announced("a", "b")
    assert shard.inject("a", 1, 50) == MIN_TIMESTAMP
    assert shard.inject("b", 2, 40) == 40
    shard.accept("c", 3, INJECTOR)
    assert shard.inject("a", 1, 60) == 40
    assert shard.inject("b", 2, 60) == 40, "the newcomer has said nothing yet"
    assert shard.inject("c", 3, 10) == 40, "and what it brings from behind is late"
    assert shard.inject("c", 3, 70) == 60


@pytest.mark.guarantee("G7", section="5.2")
def test_a_missing_expected_process_holds_the_value_and_is_named() -> None:
    shard = announced("a", expected=("a", "b"))
    assert shard.inject("a", 1, 50) == MIN_TIMESTAMP
    assert holding(shard) == [("b", HoldKind.HOLD_KIND_INJECTOR)]
    shard.accept("b", 2, INJECTOR)
    assert shard.known(INJECTOR) == MIN_TIMESTAMP
    assert shard.inject("b", 2, 20) == 20


@pytest.mark.guarantee("G7", section="5.2")
def test_a_silent_crashed_process_keeps_its_value_and_is_named() -> None:
    shard = announced("a", "b", expected=("a", "b"))
    shard.inject("a", 1, 50)
    shard.inject("b", 2, 20)
    shard.now = 40_000_000
    assert shard.inject("a", 1, 90) == 20
    assert holding(shard) == [("b", HoldKind.HOLD_KIND_INJECTOR)]
    assert shard.accept("b", 9, INJECTOR) == 20
    assert shard.say("b", 2, 1_000, INJECTOR)[0].superseded
    assert shard.inject("b", 9, 30) == 30


@pytest.mark.guarantee("G4", section="5.2")
def test_an_unexpected_process_is_refused_by_name() -> None:
    shard = announced(expected=("a", "b"))
    with pytest.raises(AcceptRefusedError, match="expects no process 'c', only: a, b"):
        shard.begin_accept("c", 1, INJECTOR)
    assert shard.say("c", 1, 5, INJECTOR)[0].superseded


@pytest.mark.guarantee("G4", section="6.2")
def test_an_older_process_of_the_same_name_is_refused() -> None:
    shard = announced("a")
    shard.accept("a", 5, INJECTOR)
    with pytest.raises(AcceptRefusedError, match="it holds sequencer 5"):
        shard.begin_accept("a", 4, INJECTOR)
    assert shard.say("a", 1, 99, INJECTOR)[0].superseded
    assert not shard.say("a", 6, 99, INJECTOR)[0].superseded
    assert shard.accept("a", 5, INJECTOR) == MIN_TIMESTAMP


@pytest.mark.guarantee("G8", section="5.2")
def test_an_idle_process_leaves_the_minimum() -> None:
    shard = announced("a", "b", expected=("a", "b"))
    shard.inject("a", 1, 10)
    shard.inject("b", 2, 500)
    assert shard.inject("a", 1, 10, idle=True) == 500


@pytest.mark.guarantee("G7", section="5.2")
def test_if_all_are_idle_the_value_stays() -> None:
    shard = announced("a", "b")
    shard.inject("a", 1, 10)
    shard.inject("b", 2, 20)
    shard.inject("a", 1, 10, idle=True)
    assert shard.inject("b", 2, 20, idle=True) == 20
    assert {name for name, _ in holding(shard)} == {"a", "b"}


@pytest.mark.guarantee("G8", section="5.2")
def test_what_a_process_promises_counts_before_it_is_idle() -> None:
    shard = announced("a", "b")
    shard.inject("a", 1, 10)
    shard.inject("b", 2, 20)
    assert shard.inject("a", 1, 800, idle=True) == 20
    assert shard.inject("b", 2, 900, idle=True) == 900
    assert {name for name, _ in holding(shard)} == {"a", "b"}


@pytest.mark.guarantee("G8", section="5.2")
def test_the_idle_process_whose_promise_holds_is_named_first() -> None:
    shard = announced("a", "b", "c")
    shard.inject("a", 1, 10)
    shard.inject("b", 2, 30)
    shard.inject("c", 3, 20)
    shard.inject("a", 1, 10, idle=True)
    shard.inject("b", 2, 30, idle=True)
    assert shard.inject("c", 3, 20, idle=True) == 20
    assert [name for name, _ in holding(shard)] == ["c", "b", "a"]
    answer = shard.core.explain(INJECTOR, shard.now, limit=1)
    assert answer is not None
    assert ([row.member for row in answer.holding], answer.holding_count) == (["c"], 3)
    assert ([row.member for row in answer.rows], answer.row_count) == (["a"], 3)


@pytest.mark.guarantee("G8", section="5.2")
def test_the_last_active_one_finishes_and_idle_promises_count() -> None:
    shard = announced("a", "b")
    shard.inject("b", 2, 50)
    assert shard.inject("a", 1, 100, idle=True) == 50
    assert shard.inject("b", 2, MAX_TIMESTAMP) == 100
    assert shard.inject("a", 1, 120) == 120


@pytest.mark.guarantee("G7", section="5.2")
def test_a_process_active_again_with_old_data_lowers_nothing() -> None:
    shard = announced("a", "b")
    shard.inject("a", 1, 10)
    shard.inject("b", 2, 500)
    shard.inject("a", 1, 10, idle=True)
    assert shard.inject("a", 1, 10) == 500
    assert holding(shard) == [("a", 0), ("b", 0)], "it takes part again, at what was broadcast"
    assert shard.inject("b", 2, 900) == 500
    assert shard.inject("a", 1, 600) == 600


@pytest.mark.paper(section="5.2")
def test_a_finished_process_is_plus_infinity_and_that_is_final() -> None:
    shard = announced("a", "b", expected=("a", "b"))
    shard.inject("b", 2, 40)
    assert shard.inject("a", 1, MAX_TIMESTAMP) == 40
    assert shard.inject("a", 1, 5) == 40
    assert shard.accept("a", 3, INJECTOR) == MAX_TIMESTAMP
    assert shard.inject("a", 3, 5, idle=True) == 40
    assert shard.inject("b", 2, MAX_TIMESTAMP) == MAX_TIMESTAMP
    assert holding(shard) == []


@pytest.mark.guarantee("G7", section="5.2")
def test_finished_and_idle_processes_keep_the_last_promise() -> None:
    shard = announced("a", "b")
    shard.inject("a", 1, 10)
    shard.inject("b", 2, 20)
    shard.inject("a", 1, MAX_TIMESTAMP)
    assert shard.known(INJECTOR) == 20
    assert shard.inject("b", 2, 30, idle=True) == 30
    assert [name for name, _ in holding(shard)] == ["b"]


@pytest.mark.guarantee("G8", section="5.2")
def test_leaving_the_expected_set_releases_the_value() -> None:
    shard = announced("a", "b", expected=("a", "b"))
    shard.inject("a", 1, 100)
    shard.inject("b", 2, 7)
    shard.expect("a")
    assert shard.known(INJECTOR) == 100
    assert shard.say("b", 2, 200, INJECTOR)[0].superseded
    shard.restart()
    assert shard.core.sequencers(INJECTOR) == [("a", 1)]


@pytest.mark.guarantee("G7")
def test_a_larger_expected_set_holds_the_value_from_then_on() -> None:
    shard = announced("a", expected=("a",))
    assert shard.inject("a", 1, 10) == 10
    shard.expect("a", "b")
    assert shard.inject("a", 1, 20) == 10
    shard.restart()
    assert shard.inject("a", 1, 30) == 10
    assert shard.accept("b", 2, INJECTOR) == 10
    assert shard.inject("b", 2, 25) == 25


@pytest.mark.guarantee("G7")
def test_idleness_and_finishing_survive_a_restart() -> None:
    shard = announced("a", "b", "c")
    shard.inject("c", 3, MAX_TIMESTAMP)
    shard.inject("a", 1, 10, idle=True)
    shard.inject("b", 2, 50)
    shard.restart()
    assert shard.known(INJECTOR) == 50
    assert shard.inject("b", 2, 60) == 60
    assert shard.inject("a", 1, 5) == 60
    assert shard.inject("b", 2, 70) == 60


@pytest.mark.guarantee("G7", section="5.2")
def test_a_delayed_report_does_not_make_a_waking_process_idle() -> None:
    shard = announced("a", "b")
    shard.report("a", 1, 10, INJECTOR, number=1)
    shard.report("b", 2, 10, INJECTOR, number=1)
    assert shard.report("a", 1, 10, INJECTOR, number=2) == 10, "it has something to send, by a connection again"
    shard.say("a", 1, 10, INJECTOR, idle=True, number=1)
    assert shard.report("b", 2, 500, INJECTOR, number=1) == 10
    assert shard.report("a", 1, 10, INJECTOR, idle=True, number=2) == 500


@pytest.mark.guarantee("G7", section="5.2")
def test_reacceptance_is_answered_once_idle_end_is_journaled() -> None:
    shard = announced("a", "b")
    shard.inject("a", 1, 10)
    shard.report("a", 1, 10, INJECTOR, idle=True, number=2)
    with pytest.raises(ReportNotReceivedError):
        shard.begin_accept("a", 1, INJECTOR, report_number=3)
    assert not shard.append(), "a question costs no append"
    shard.say("a", 1, 10, INJECTOR, number=3)
    assert shard.accept("a", 1, INJECTOR, report_number=3) == 10
    shard.restart()
    assert shard.accept("a", 1, INJECTOR, report_number=3) == 10, "it was journaled with the answer"
    assert shard.inject("b", 2, 500) == 10


@pytest.mark.guarantee("G7", section="5.2")
def test_reacceptance_is_answered_once_the_finish_is_journaled() -> None:
    """A master asks this before it retires a process. No one reports the end of that process again."""
    shard = announced("a", "b")
    assert shard.say("a", 1, MAX_TIMESTAMP, INJECTOR) == []
    token = shard.begin_accept("a", 1, INJECTOR)
    assert token not in shard.answers
    shard.flush()
    assert shard.answers[token] == MAX_TIMESTAMP
    shard.restart()
    assert shard.inject("b", 2, 30) == 30


@pytest.mark.guarantee("G7", section="5.2")
def test_what_only_a_former_authority_received_is_not_journaled() -> None:
    shard = announced("a", "b")
    shard.report("a", 1, 10, INJECTOR, idle=True, number=2)
    shard.say("a", 1, 10, INJECTOR, number=3)
    shard.restart()
    with pytest.raises(ReportNotReceivedError):
        shard.begin_accept("a", 1, INJECTOR, report_number=3)
    with pytest.raises(AcceptRefusedError):
        shard.begin_accept("b", 1, INJECTOR, report_number=3)


@pytest.mark.guarantee("G7", section="5.2")
@pytest.mark.parametrize("base", [False, True])
def test_a_report_delayed_over_a_restart_makes_no_process_idle(*, base: bool) -> None:
    shard = announced("a", "b", settings=CoreSettings(snapshot_bytes=600) if base else None)
    shard.report("a", 1, 10, INJECTOR, number=4)
    shard.accept("a", 1, INJECTOR, report_number=4)
    for value in range(30 if base else 0):
        shard.inject("b", 2, value)
    assert bool(shard.snapshots) is base
    shard.restart()
    shard.say("a", 1, 10, INJECTOR, idle=True, number=3)
    assert shard.inject("b", 2, 500) == 10


def test_a_removed_injector_may_return_under_its_streams_name() -> None:
    shard = announced("a")
    shard.inject("a", 1, 10)
    shard.remove(INJECTOR)
    assert not shard.say("a", 1, 11, INJECTOR)[0].superseded
    assert shard.accept("a", 2, INJECTOR) == MIN_TIMESTAMP
    assert shard.inject("a", 2, 5) == 5
    shard.restart()
    assert shard.known(INJECTOR) == 5


@pytest.mark.guarantee("G4", section="6.2")
@pytest.mark.parametrize("base", [False, True])
def test_an_injector_of_an_earlier_incarnation_is_refused(*, base: bool) -> None:
    """Regression: an injector of the former life repeated its `finish`.

    That ended the stream which came back under the name.
    """
    shard = Shard(CoreSettings(snapshot_bytes=600) if base else None)
    shard.accept("a", 3, INJECTOR)
    shard.inject("a", 3, MAX_TIMESTAMP)
    shard.remove(INJECTOR, up_to=4)
    for process, sequencer in (("a", 3), ("late", 4)):
        assert shard.say(process, sequencer, MAX_TIMESTAMP, INJECTOR)[0].superseded
        with pytest.raises(AcceptRefusedError, match="injector/queries was removed since it was drawn"):
            shard.begin_accept(process, sequencer, INJECTOR)
        shard.restart()
    shard.accept("b", 5, INJECTOR)
    if base:
        for value in range(20):
            shard.inject("b", 5, value)
        assert shard.snapshots > 0
        shard.restart()
    with pytest.raises(AcceptRefusedError, match="was removed"):
        shard.begin_accept("a", 4, INJECTOR)
    assert shard.inject("b", 5, 50) == 50, "a is not waited for"


@pytest.mark.guarantee("G4", section="6.2")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_delayed_removal_restores_no_later_process(*, restarted: bool) -> None:
    """Two masters remove two lives of one stream, and the older removal comes last."""
    shard = Shard()
    shard.remove(INJECTOR, up_to=9)
    shard.remove(INJECTOR, up_to=4)
    if restarted:
        shard.restart()
    with pytest.raises(AcceptRefusedError, match="was removed"):
        shard.begin_accept("a", 9, INJECTOR)


@pytest.mark.guarantee("G7", section="7.2")
def test_a_delayed_removal_keeps_the_next_streams_expected_set() -> None:
    """No other report brings the expected set again.

    Without it, the first process alone would determine the watermark.
    """
    shard = Shard()
    shard.accept("a", 3, INJECTOR)
    shard.remove(INJECTOR, up_to=4)
    shard.expect("a", "b", as_of=20)
    shard.remove(INJECTOR, up_to=4)
    shard.accept("a", 5, INJECTOR)
    assert shard.inject("a", 5, 50) == MIN_TIMESTAMP
    shard.restart()
    shard.accept("b", 6, INJECTOR)
    assert shard.inject("b", 6, 30) == 30


@pytest.mark.guarantee("G7", section="5.2")
@pytest.mark.parametrize("base", [False, True])
def test_a_paused_masters_expected_set_removes_no_process(*, base: bool) -> None:
    shard = Shard(CoreSettings(snapshot_bytes=600) if base else None)
    shard.expect("a", "b", as_of=20)
    shard.accept("a", 1, INJECTOR)
    shard.accept("b", 2, INJECTOR)
    shard.expect("a", as_of=10)
    assert shard.inject("a", 1, 50) == MIN_TIMESTAMP, "b is waited for"
    shard.restart()
    assert shard.snapshots > 0 or not base
    shard.expect("a", as_of=19)
    assert shard.inject("b", 2, 30) == 30
    shard.expect("a", as_of=21)
    assert shard.known(INJECTOR) == 50


@pytest.mark.guarantee("G13", section="7.2")
@pytest.mark.parametrize("base", [False, True])
def test_what_was_removed_is_remembered_as_far_as_it_matters(*, base: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: every former incarnation and stream stayed in memory and in each base."""
    monkeypatch.setattr(registry, "MAX_REMEMBERED", 3)
    shard = Shard(CoreSettings(snapshot_bytes=300) if base else None)
    shard.accept("old", 2, "injector/lasting")
    for number in range(3, 20):
        shard.accept(ALL_KEYS, number, f"c.{number}")
        shard.remove(f"c.{number}")
        shard.remove(f"injector/s{number}", up_to=number)
    shard.restart()
    assert shard.snapshots > 0 or not base
    known = shard.core.registry
    assert len(known.removed) == len(known.ended) == 3, "what is kept of removed injectors is bounded"
    for stream in ("s3", "s19"):
        with pytest.raises(AcceptRefusedError, match="was removed"):
            shard.begin_accept("a", 3, f"injector/{stream}")
    assert shard.say(ALL_KEYS, 19, 5, "c.19")[0].superseded
    shard.accept("a", 20, "injector/s3")
    # A process that was accepted long before goes on.
    shard.accept("old", 2, "injector/lasting")
    assert shard.report("old", 2, 7, "injector/lasting") == 7


def test_who_removes_a_stream_without_a_name_removes_no_other() -> None:
    """Regression: an empty name matched every life of a stream, so no injector was accepted any more."""
    shard = Shard()
    shard.remove("injector/", up_to=(1 << 64) - 1)
    shard.restart()
    shard.accept("a", 1, "injector/words")
    assert shard.report("a", 1, 7, "injector/words") == 7
