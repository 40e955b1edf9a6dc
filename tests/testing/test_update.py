"""A topology is updated in virtual time, as on a server. Some state stays, and some is removed (section 4.1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.client.injector import RecordsLeftError
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings


class Word(msgspec.Struct):
    text: str


class OldCounts(msgspec.Struct):
    times: int = 0


class Counts(msgspec.Struct):
    total: int = 0
    since: int = 0


class Counter(mw.Computation[Word, OldCounts]):
    def process_record(self, ctx: mw.Context[OldCounts], record: mw.Record[Word]) -> None:
        ctx.state.times += 1
        ctx.produce("counts", ctx.state.times)
        ctx.set_timer(mw.Timestamp(100), "end")

    def process_timer(self, ctx: mw.Context[OldCounts], timer: mw.Timer) -> None:
        ctx.produce("ends", f"old {ctx.state.times}")


class NewCounter(mw.Computation[Word, Counts]):
    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Counts:
        return Counts(total=stored.read(OldCounts).times)

    def process_record(self, ctx: mw.Context[Counts], record: mw.Record[Word]) -> None:
        ctx.state.total += 1
        ctx.state.since += 1
        ctx.produce("counts", ctx.state.total)

    def process_timer(self, ctx: mw.Context[Counts], timer: mw.Timer) -> None:
        ctx.produce("ends", f"new {ctx.state.total}")


class Broken(mw.Computation[Word, OldCounts]):
    def process_record(self, ctx: mw.Context[OldCounts], record: mw.Record[Word]) -> None:
        raise ValueError("not yet written")


class Sum(mw.Computation[int, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[int]) -> None:
        ctx.state += record.value
        ctx.produce("sums", ctx.state)


class Refuser(mw.Computation[int]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[int]) -> None:
        raise ValueError("never")


class Silent(mw.Computation[Word]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Word]) -> None: ...


OUTPUTS = {"counts": int, "ends": str}
AT = mw.Timestamp(1)


def topology(counter: Any = Counter, reader: Any = None, name: str = "words", **options: Any) -> mw.Topology:
    made = mw.Topology(name)
    made.source("words", Word)
    if counter is not None:
        made.add(counter, name="counter", inputs={"words": mw.key("text")}, outputs=OUTPUTS, **options)
    if reader is not None:
        made.add(reader, name="reader", inputs={"counts": mw.key(lambda count: "all")}, outputs={"sums": int})
    return made


def started(made: mw.Topology, times: int = 2) -> TopologyHarness:
    harness = TopologyHarness(made, settings=IntervalSettings(flush_interval=0, checkpoint_entries=2))
    for _ in range(times):
        harness.send("words", Word("a"), AT)
    return harness


@pytest.mark.guarantee("G1", section="4.4")
@pytest.mark.parametrize("crashes", [(), ("before",), ("after",), ("before", "after")])
def test_states_are_migrated_at_their_next_read_in_the_harness(crashes: tuple[str, ...]) -> None:
    harness = started(topology())
    if "before" in crashes:
        harness.crash()
    harness.update(topology(NewCounter))
    if "after" in crashes:
        harness.crash()
    assert harness.state("counter", "a") == Counts(2, 0)
    harness.send("words", Word("a"), AT)
    assert harness.state("counter", "a") == Counts(3, 1)
    assert harness.values("counts") == [1, 2, 3]
    harness.finish()
    assert harness.values("ends") == ["new 3"], "a timer outlives the code that set it"


@pytest.mark.paper(section="4.4")
def test_an_update_that_a_server_would_refuse_changes_nothing() -> None:
    class Other(mw.Computation[Word, Counts]):
        def process_record(self, ctx: Any, record: Any) -> None: ...

    harness = started(topology(strong=False))
    after = topology(Other)
    after.source("words", Word)
    with pytest.raises(mw.TopologyError) as raised:
        harness.update(after)
    problems = [problem.message for problem in raised.value.problems]
    assert any("set state_version = 2 and define migrate" in message for message in problems)
    assert any("its productions were weak" in message for message in problems)
    harness.send("words", Word("a"), AT)
    assert harness.values("counts") == [1, 2, 3]


def test_an_update_with_mistakes_or_another_name_is_refused() -> None:
    harness = started(topology())
    with pytest.raises(mw.TopologyError, match="does not define process_record"):
        harness.update(topology(mw.Computation[Word, None]))
    with pytest.raises(mw.UsageError, match="topology 'words' cannot be updated by one named 'other'"):
        harness.update(topology(name="other"))


@pytest.mark.paper(section="4.1")
def test_the_type_of_a_stream_does_not_change() -> None:
    harness = started(topology())
    after = mw.Topology("words")
    after.source("words", str)
    with pytest.raises(
        mw.TopologyError, match="its type is str, and records of it that are on the way were made as Word"
    ):
        harness.update(after)


def producing(made_of: Any, *values: Any) -> mw.Topology:
    """Produces a value of a type for each word. Nothing reads it, so a log keeps it."""
    made = mw.Topology("words")
    made.source("words", Word).key_by("text").update("made", 0, lambda number, word: (number, values), made_of)
    return made


def kind(name: str, /, *fields: Any) -> Any:
    return msgspec.defstruct(name, fields)


@pytest.mark.paper(section="4.1")
@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (kind("Made", ("since", str)), "field 'since' is written as int and read as str"),
        (kind("Other", ("since", str)), "field 'since' is written as int and read as str"),
        (kind("Made", ("since", int), ("to", int)), "field 'to' is new and has no default"),
        (kind("Made"), "field 'since' is written and not read"),
        (int, "its value is written as object and read as int"),
    ],
)
def test_a_stream_keeps_a_type_that_reads_its_old_records(now: Any, difference: str) -> None:
    then = kind("Made", ("since", int))
    harness = started(producing(then, then(1)))
    with pytest.raises(mw.TopologyError, match=difference) as raised:
        harness.update(producing(now))
    (problem,) = raised.value.problems
    assert problem.where == "stream 'words/made'"
    assert problem.message.endswith("stream of another name, or keep all fields and give new ones a default")
    harness.update(producing(kind("Renamed", ("since", int), ("to", int, 0))))
    harness.send("words", Word("a"), AT)


@pytest.mark.paper(section="4.1")
def test_failed_records_succeed_with_corrected_code() -> None:
    harness = TopologyHarness(topology(Broken))
    with pytest.raises(ValueError, match="not yet written"):
        harness.send("words", Word("a"), AT)
    harness.update(topology())
    assert harness.values("counts") == [1]
    harness.finish()
    assert harness.watermark("counter") == mw.MAX_TIMESTAMP


@pytest.mark.paper(section="4.1")
def test_an_added_computation_gets_what_is_produced_from_then_on() -> None:
    harness = started(topology())
    harness.update(topology(reader=Sum))
    harness.send("words", Word("a"), AT)
    assert harness.values("sums") == [3]
    harness.finish()
    assert harness.watermark("reader") == mw.MAX_TIMESTAMP


@pytest.mark.paper(section="4.1")
def test_a_removed_computations_state_is_dropped_for_good() -> None:
    harness = started(topology(reader=Sum))
    assert harness.values("sums") == [1, 3]
    harness.update(topology())
    with pytest.raises(mw.UsageError, match="has no computation 'reader'"):
        harness.state("reader", "all")
    harness.send("words", Word("a"), AT)
    harness.crash()
    harness.update(topology(reader=Sum))
    assert harness.state("reader", "all") is None
    harness.send("words", Word("a"), AT)
    assert harness.values("sums") == [1, 3, 4]


def without_counter(reader: Any) -> mw.Topology:
    made = mw.Topology("words")
    made.source("words", Word)
    made.add(Silent, inputs={"words": mw.key("text")}, outputs={"counts": int})
    made.add(reader, name="reader", inputs={"counts": mw.key(lambda count: "all")}, outputs={"sums": int})
    return made


@pytest.mark.paper(section="4.1")
@pytest.mark.parametrize("crashes", [False, True])
def test_a_removed_computations_productions_are_still_delivered(crashes: bool) -> None:
    harness = TopologyHarness(topology(reader=Refuser))
    with pytest.raises(ValueError, match="never"):
        harness.send("words", Word("a"), AT)
    with pytest.raises(ValueError, match="never"):
        harness.update(without_counter(Refuser))
    harness.advance(mw.Timestamp(50))
    assert harness.watermark("reader") <= AT, "what is still to be delivered holds the watermark"
    if crashes:
        with pytest.raises(ValueError, match="never"):
            harness.crash()
    harness.update(without_counter(Sum))
    assert harness.values("sums") == [1]
    assert harness.watermark("reader") == mw.Timestamp(50)


@pytest.mark.paper(section="4.1")
def test_what_is_due_to_a_removed_computation_is_discarded() -> None:
    harness = TopologyHarness(topology(reader=Refuser))
    with pytest.raises(ValueError, match="never"):
        harness.send("words", Word("a"), AT)
    harness.advance(mw.Timestamp(50))
    assert harness.watermark("counter") == AT
    harness.update(topology())
    assert harness.watermark("counter") == mw.Timestamp(50)
    assert harness.values("counts") == [1]


@pytest.mark.paper(section="4.1")
def test_records_without_a_reader_any_more_are_not_lost_silently() -> None:
    harness = TopologyHarness(topology(Broken))
    with pytest.raises(ValueError, match="not yet written"):
        harness.send("words", Word("a"), AT)
    after = mw.Topology("words")
    after.source("words", Word)
    after.add(Counter, name="other", inputs={"words": mw.key("text")}, outputs=OUTPUTS)
    harness.update(after)
    with pytest.raises(RecordsLeftError, match="'counter', which read stream 'words', has ended with records un-ACKed"):
        harness.send("words", Word("b"), AT)
    harness.send("words", Word("a"), AT)
    harness.send("words", Word("b"), AT)
    harness.finish()
    assert harness.values("counts") == [1, 1]


@pytest.mark.guarantee("G7", section="4.1")
def test_watermarks_and_timers_go_on_from_where_they_were() -> None:
    harness = started(topology())
    harness.advance(mw.Timestamp(100))
    assert harness.values("ends") == ["old 2"]
    harness.update(topology(NewCounter))
    assert harness.watermark("counter") == 100
    harness.finish()
    assert harness.values("ends") == ["old 2"], "nothing fires twice"


@pytest.mark.paper(section="4.4")
def test_another_aggregator_is_refused_another_size_mixes_none() -> None:
    def counting(size: int, aggregator: Any) -> mw.Topology:
        made = mw.Topology("words")
        made.source("words", Word)
        computation = windows.Aggregate(windows.tumbling(mw.Duration(size)), aggregator)
        made.add(computation, name="windowed", inputs={"words": mw.key("text")})
        return made

    harness = started(counting(10, agg.count()))
    with pytest.raises(mw.TopologyError, match="a step of the library converts no states"):
        harness.update(counting(10, agg.mean(lambda word: 1.0)))
    harness.update(counting(20, agg.count()))
    for stamp in (5, 15):
        harness.send("words", Word("a"), mw.Timestamp(stamp))
    harness.finish()
    assert [(r.start, r.end, r.value) for r in harness.values("windows")] == [(0, 10, 2), (0, 20, 2)]


@pytest.mark.paper(section="4.4")
def test_a_step_of_the_library_is_not_told_to_migrate() -> None:
    def program(of: type, build: Any) -> mw.Topology:
        steps = mw.Topology("steps")
        build(steps.source("words", Word).key_by("text"), of)
        return steps

    def library(words: Any, of: type) -> None:
        words.update("out", of(), lambda state, word: (state, []), str)

    def in_order(words: Any, of: type) -> None:
        library(words.ordered_by_time(), of)

    def own(words: Any, of: type) -> None:
        class Own(mw.Computation[Word, of]):  # type: ignore[valid-type]
            def process_record(self, ctx: Any, record: Any) -> None: ...

        words.ordered_by_time().process("out", Own, {})

    by_library = "update converts no states. To keep them, write the step as process .* or give the step another name"
    for build, remedy in (
        (library, by_library),
        (in_order, by_library),
        (own, r"set state_version = 2 and define migrate\(self, stored\)"),
    ):
        harness = TopologyHarness(program(int, build))
        with pytest.raises(mw.TopologyError, match=remedy):
            harness.update(program(str, build))
