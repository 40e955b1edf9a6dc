"""The contract of connectors: sources and sinks in memory keep it, and each kind of wrong one is noticed (G1, G13)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from millwheel.connectors import Sink, Source
from millwheel.testing.connectors import BrokenContractError, SinkContract, SourceContract, rules
from tests.connectors import wrong_sinks as sinks
from tests.connectors import wrong_sources as sources
from tests.connectors.given import Numbers, Store, Table, World, at, bad
from tests.patience import patience


@pytest.mark.guarantee("G1")
class TestLists(SourceContract[int, int]):
    def setup_method(self) -> None:
        self.world = World(final=False)

    def make_source(self) -> Source[int, int]:
        return Numbers(self.world, most=4)

    def write(self, split: int, numbers: Sequence[int]) -> None:
        records = self.world.splits.setdefault(f"list {split}", [])
        records += [(number, at(number)) for number in numbers]

    def end(self) -> None:
        self.world.final = True

    def write_bad(self, split: int) -> None:
        self.world.splits.setdefault(f"list {split}", []).append((bad(f"list {split}"), None))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.world.breaks = 1_000
        yield
        self.world.breaks = 0


class Queue(TestLists):
    """It forgets what is committed."""

    keeps_records = False

    def make_source(self) -> Source[int, int]:
        return sources.Forgets(self.world, most=4)

    def empty(self) -> None:
        self.world.splits.clear()
        vars(self.world).pop("forgotten", None)


@pytest.mark.guarantee("G1", "G3", "G15")
class TestTable(SinkContract[int]):
    def setup_method(self) -> None:
        self.store = Store()

    def make_sink(self) -> Sink[int]:
        return Table(self.store)

    def stored(self) -> Sequence[int]:
        return [value for records in self.store.batches.values() for value, _ in records]

    @contextmanager
    def away(self) -> Iterator[None]:
        self.store.breaks_before = 1_000
        yield
        self.store.breaks_before = 0


def _broken(contract: Any, rule: str, why: str) -> None:
    """Run one test of a contract, which must say what is wrong."""
    contract.setup_method()
    with pytest.raises(BrokenContractError, match=why):
        getattr(contract, f"test_{rule}")()


@pytest.fixture(autouse=True)
def impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong may be that a call never returns, or that a record never comes."""
    if "rule" in request.fixturenames:
        monkeypatch.setattr(rules, "CALL_SECONDS", 1.0)
        monkeypatch.setattr(rules, "PATIENCE_SECONDS", 1.0)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("wrong", "rule", "why"),
    [
        (sources.BeginsAgain, "a_process_that_dies_changes_nothing", "were read"),
        (sources.BeginsAgain, "a_split_that_moves_goes_on_at_its_position", "were read"),
        (sources.SaysWhereItBegan, "a_position_always_means_the_same_place", "there now"),
        (sources.Skips, "a_position_always_means_the_same_place", "there now"),
        (sources.Reverses, "each_record_is_read_once", "were read"),
        (sources.TimesOfReads, "a_position_always_means_the_same_place", "there now"),
        (sources.SharesItsReader, "readers_of_a_split_do_not_disturb_each_other", "one of two readers"),
        (sources.Takes, "a_position_always_means_the_same_place", "there now"),
        (sources.EndsEarly, "records_that_come_later_are_read", "never came"),
        (sources.NeverEnds, "the_stream_ends_with_its_splits", "ended=True"),
        (sources.EndsOnce, "a_split_that_has_ended_says_so_again", "no read from an earlier position"),
        (sources.SaysNothingWaits, "behind_says_whether_records_wait", "behind=0"),
        (sources.ReadsAll, "a_read_has_a_bound", "10,000 records at most"),
        (sources.Heedless, "a_read_has_no_more_records_than_it_may", "returned 4 records at once"),
        (sources.KeepsItsLock, "a_cancelled_call_loses_nothing", "has not returned"),
        (sources.Leaks, "close_gives_back_what_a_reader_holds", "left"),
        (sources.Counts, "use_does_not_change_what_a_source_is", "parameters only"),
        (sources.NamesByChance, "splits_have_names_that_stay", "calls the splits"),
        (sources.FindsOnce, "a_split_that_comes_later_is_read", "never came"),
        (sources.DropsBadOnes, "a_bad_record_does_not_stop_its_split", "one BadRecord"),
        (sources.SaysNothingOfErrors, "a_system_that_is_away_loses_nothing", "behind=0"),
    ],
)
def test_a_wrong_source_is_noticed(wrong: type[sources.Wrong], rule: str, why: str) -> None:
    class Contract(TestLists):
        def make_source(self) -> Source[int, int]:
            return wrong(self.world, 20_000 if wrong is sources.KeepsItsLock else 4)

    _broken(Contract(), rule, why)


@pytest.mark.guarantee("G1")
def test_a_source_may_forget_what_is_committed() -> None:
    for rule in ("a_position_always_means_the_same_place", "an_idle_split_follows_the_clock"):
        contract = Queue()
        contract.setup_method()
        getattr(contract, f"test_{rule}")()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("wrong", [sources.Takes, sources.ForgetsTooMuch])
def test_what_is_forgotten_too_early_is_noticed(wrong: type[sources.Wrong]) -> None:
    class Contract(Queue):
        def make_source(self) -> Source[int, int]:
            return wrong(self.world, 4)

    _broken(Contract(), "a_position_always_means_the_same_place", "there now")


def test_a_position_that_changes_is_noticed() -> None:
    class Contract(TestLists):
        def make_source(self) -> Any:
            return sources.ChangesPositions(Numbers(self.world, 4))

    _broken(Contract(), "a_position_always_means_the_same_place", "return a copy")


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("wrong", "rule", "why"),
    [
        (sinks.Appends, "a_batch_that_comes_again_changes_nothing", "stored once"),
        (sinks.Appends, "a_process_that_dies_changes_nothing", "stored once"),
        (sinks.RemembersInMemory, "a_writer_that_wakes_up_changes_nothing", "stored once"),
        (sinks.ComparesNumbers, "a_batch_that_does_not_follow_is_refused", "does not follow"),
        (sinks.ForgetsRuns, "a_former_run_is_refused", "a later run has written"),
        (sinks.ForgetsShards, "each_shard_has_batches_of_its_own", "cannot be written"),
        (sinks.ForgetsNames, "each_name_has_batches_of_its_own", "cannot be written"),
        (sinks.StoresTheIdFirst, "a_cancelled_write_loses_nothing", "stored once"),
        (sinks.StoresTheIdLast, "a_cancelled_write_loses_nothing", "stored once"),
        (sinks.LooksAndThenWrites, "two_writers_at_once_write_once", "stored once"),
        (sinks.WritesLater, "each_record_is_written_once", "stored once"),
        (sinks.SaysNothingOfWrites, "a_system_that_is_away_loses_nothing", "raises an error"),
        (sinks.ReversesBatches, "each_record_is_written_once", "keep their order"),
        (sinks.LeavesThreads, "close_gives_back_what_a_writer_holds", "left"),
    ],
)
def test_a_wrong_sink_is_noticed(wrong: type[sinks.WrongSink], rule: str, why: str) -> None:
    class Contract(TestTable):
        def make_sink(self) -> Sink[int]:
            return wrong(self.store)

    _broken(Contract(), rule, why)


def test_the_contract_needs_no_pytest() -> None:
    """It is imported by programs without pytest, and millwheel does not import it."""
    code = (
        "import sys, millwheel.testing.connectors; assert 'pytest' not in sys.modules; "
        "print(millwheel.testing.connectors.SourceContract.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stdout == "SourceContract\n"
