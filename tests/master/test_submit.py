"""Submissions: incarnations, intervals, logs, and everything that can be wrong with a topology (sections 4.1, 7.1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel.master.messages import CancelTopology, DrainTopology, SubmitTopology
from millwheel.master.settings import MasterSettings
from millwheel.master.validation import validate
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import IntervalMap
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.record_schema import record_schema

from .harness import Cluster, Master, computation, external, source, topology


def submit(master: Master, spec: specs.TopologySpec, request: str = "r1") -> object:
    return master.call(SubmitTopology(spec, request), now=1_000)


def problems_of(spec: specs.TopologySpec, cluster: Cluster | None = None) -> str:
    return "\n".join(str(problem) for problem in validate(spec, (cluster or Cluster()).catalog()))


@pytest.mark.guarantee("G11", section="7.1")
def test_submitted_computations_cover_every_key_with_journals() -> None:
    cluster = Cluster()
    cluster.join("w1")
    submit(Master(cluster), topology())
    known = cluster.catalog()
    record = known.topologies["zeitgeist"]
    assert set(record.incarnations) == {"window-counter", "dip-detector"}
    for incarnation in record.incarnations.values():
        for key in (b"", b"a", b"\xff\xff"):
            interval = known.locate(incarnation, key)
            assert interval is not None
            assert interval.owner.worker_id == "w1"
            assert cluster.has_journal(interval.journal)


@pytest.mark.paper(section="7.1")
def test_initial_intervals_go_round_robin_over_the_workers() -> None:
    cluster = Cluster()
    for worker in ("w1", "w2", "w3"):
        cluster.join(worker)
    submit(Master(cluster, settings=MasterSettings(intervals_per_computation=6)), topology())
    known = cluster.catalog()
    for incarnation in known.topologies["zeitgeist"].incarnations.values():
        owners = [one.owner.worker_id for one in known.maps[incarnation].record.intervals]
        assert sorted(owners) == ["w1", "w1", "w2", "w2", "w3", "w3"]
        assert len(known.maps[incarnation].intervals) == 6


@pytest.mark.paper(section="7.1")
def test_split_points_of_the_operator_are_taken_as_they_are() -> None:
    cluster = Cluster()
    submit(Master(cluster, settings=MasterSettings(split_points=(b"m", b"g"))), topology())
    known = cluster.catalog()
    interval_map = known.maps[known.topologies["zeitgeist"].incarnations["window-counter"]]
    assert [interval.start for interval in interval_map.intervals] == [b"", b"g", b"m"]


@pytest.mark.paper(section="6.2")
def test_every_sequencer_is_drawn_once_and_is_below_the_counter() -> None:
    cluster = Cluster()
    cluster.join("w1")
    submit(Master(cluster, settings=MasterSettings(intervals_per_computation=4)), topology())
    known = cluster.catalog()
    drawn = [one.sequencer for interval_map in known.maps.values() for one in interval_map.record.intervals]
    assert len(set(drawn)) == len(drawn)
    assert max(drawn) <= known.drawn


def test_unread_streams_and_dead_letters_get_logs() -> None:
    cluster = Cluster()
    submit(Master(cluster), topology())
    known = cluster.catalog()
    assert set(known.logs) == {"zeitgeist/dips", "zeitgeist/dead-letters"}
    assert [consumer.log for consumer in known.consumers("zeitgeist/dips")] == [True]
    assert [consumer.computation for consumer in known.consumers("zeitgeist/windows")] == ["dip-detector"]


def test_the_log_keeps_the_declared_retention() -> None:
    cluster = Cluster()
    spec = topology()
    spec.streams.add(name="zeitgeist/dips", retention=specs.Retention(max_age_us=5, max_bytes=7))
    submit(Master(cluster), spec)
    assert cluster.catalog().logs["zeitgeist/dips"].retention == specs.Retention(max_age_us=5, max_bytes=7)


def test_the_same_request_again_is_the_same_submission() -> None:
    cluster = Cluster()
    master = Master(cluster)
    first = submit(master, topology())
    revision = cluster.state.revision
    assert submit(master, topology()) == first
    assert cluster.state.revision == revision


@pytest.mark.parametrize("request_id", ["r1", "r2", ""])
def test_a_submission_of_a_taken_name_is_refused_with_a_way_out(request_id: str) -> None:
    master = Master(Cluster())
    submit(master, topology())
    other = topology()
    other.code.digest = "cd" * 32
    with pytest.raises(RequestError, match=r"running already, with another spec or other code.*cancel") as caught:
        submit(master, other, request_id)
    assert caught.value.code is FailureCode.ALREADY_EXISTS
    if request_id != "r1":
        with pytest.raises(RequestError, match="with the same spec and code"):
            submit(master, topology(), request_id)


@pytest.mark.parametrize("earlier", ["stored", "given"])
def test_what_an_earlier_version_does_not_state_is_no_difference(earlier: str) -> None:
    """It states no schemas of states, and a submission of this version has them."""
    master, stored, given = Master(Cluster()), topology(), topology()
    stored.computations[0].state.version = given.computations[0].state.version = 1
    schema = record_schema(int)
    assert schema is not None
    (given if earlier == "stored" else stored).computations[0].state.schema.CopyFrom(schema)
    submit(master, stored)
    with pytest.raises(RequestError, match="with the same spec and code"):
        submit(master, given, "r2")
    given.computations[0].state.version = 2
    with pytest.raises(RequestError, match="with another spec or other code"):
        submit(master, given, "r2")


def test_ids_are_never_used_twice_when_a_name_is_used_again() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    submit(master, topology())
    before = cluster.catalog()
    old = set(before.maps)
    journals = [one.journal for interval_map in before.maps.values() for one in interval_map.record.intervals]
    master.call(CancelTopology("zeitgeist"))
    assert not cluster.catalog().maps
    assert not any(cluster.has_journal(journal) for journal in journals)
    submit(master, topology(), "r2")
    assert not old & set(cluster.catalog().maps)
    assert cluster.catalog().topologies["zeitgeist"].version == 2


def test_a_late_repetition_revives_no_cancelled_submission() -> None:
    master = Master(Cluster())
    submit(master, topology())
    master.call(CancelTopology("zeitgeist"))
    with pytest.raises(RequestError, match="was cancelled since"):
        submit(master, topology())


def test_a_drained_topology_keeps_its_name_until_it_is_cancelled() -> None:
    master = Master(Cluster())
    submit(master, topology())
    master.call(DrainTopology("zeitgeist"))
    with pytest.raises(RequestError, match="draining already"):
        submit(master, topology(), "r2")


def test_everything_wrong_is_reported_at_once() -> None:
    spec = topology(
        "bad name",
        [source("queries"), source("queries")],
        [
            computation("a", {"querys": "text"}, ["x"]),
            computation("a", {}, ["y"]),
        ],
    )
    spec.computations[0].late_policy = specs.LATE_POLICY_DIVERT
    spec.computations[0].strong_productions = False
    reported = problems_of(spec)
    for part in (
        "topology 'bad name'",
        "computation 'a': the name is used twice",
        "stream 'bad name/queries': it is declared twice",
        "it has no inputs",
        "(did you mean 'bad name/queries'?)",
        "diverted, but to no stream",
        "it drops or diverts late records, so its productions must be strong",
    ):
        assert part in reported


def test_a_topology_without_computations_or_input_key_is_refused() -> None:
    assert "has neither computations nor sources" in problems_of(topology(streams=[], computations=[]))
    spec = topology()
    spec.computations[0].inputs[0].ClearField("key")
    assert "name its key" in problems_of(spec)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (specs.KeySpec(function="web:key", same_key=""), ""),
        (specs.KeySpec(function="web:key", same_key="0", rows_by_function=True), ""),
        (specs.KeySpec(fields=["text"], same_key="0"), "one for all records (same_key), and in fields"),
        (specs.KeySpec(function="web:key", rows_by_function=True), "same_key, which is not set"),
        (specs.KeySpec(function="web:key", same_key="x" * 4_097), "same_key has 4,097 bytes, and 4,096 is the limit"),
    ],
)
def test_one_key_for_all_records_is_one_that_each_may_have(key: specs.KeySpec, problem: str) -> None:
    spec = topology()
    spec.computations[0].inputs[0].key.CopyFrom(key)
    assert problem in problems_of(spec) if problem else not problems_of(spec)


def test_names_have_a_length_and_an_alphabet() -> None:
    assert "201 characters" in problems_of(topology("x" * 201))
    assert "use letters" in problems_of(topology("ünïcode"))
    assert "use letters" in problems_of(topology(""))
    assert not problems_of(topology("x" * 200))


def test_the_names_of_streams_are_full_and_have_an_alphabet_too() -> None:
    spec = topology()
    spec.streams.add(name="short", record_type="app.Count")
    spec.streams.add(name="zeitgeist/bad name", record_type="app.Count")
    spec.streams.add(name="zeitgeist/", record_type="app.Count")
    spec.streams.add(name="zeitgeist/a/b", record_type="app.Count")
    spec.streams.append(external("a b/c"))
    reported = problems_of(spec)
    assert "stream 'short': name it in full, with its topology: 'zeitgeist/short'" in reported
    for name in ("zeitgeist/bad name", "zeitgeist/", "zeitgeist/a/b", "a b/c"):
        assert f"stream {name!r}: use letters" in reported


@pytest.mark.paper(section="4.2")
def test_only_its_own_topology_declares_and_writes_a_stream() -> None:
    cluster = Cluster()
    submit(Master(cluster), topology())
    twice = topology("other", [source("zeitgeist/queries")], [computation("c", {"zeitgeist/queries": "text"}, ["o"])])
    assert problems_of(twice, cluster) == (
        "stream 'zeitgeist/queries': it belongs to topology 'zeitgeist': "
        "read it by external('zeitgeist/queries', ...), or declare a stream of 'other' under another name"
    )
    writer = topology("other", [source("in")], [computation("c", {"in": "k"}, ["zeitgeist/windows"])])
    assert problems_of(writer, cluster) == (
        "computation 'c', output 'zeitgeist/windows': the stream belongs to topology 'zeitgeist', which alone writes "
        "it: produce to a stream of 'other', which 'zeitgeist' can read by external('other/...', ...)"
    )
    assert problems_of(writer) == problems_of(writer, cluster), "whether or not the owner is there"
    late = topology("other", [source("in")], [computation("c", {"in": "k"}, [])])
    late.computations[0].late_policy = specs.LATE_POLICY_DIVERT
    late.computations[0].late_stream = "zeitgeist/windows"
    assert "output 'zeitgeist/windows': the stream belongs to topology 'zeitgeist'" in problems_of(late, cluster)
    own = topology()
    own.streams[0].external = True
    assert "stream 'zeitgeist/queries': it belongs to this topology" in problems_of(own)


@pytest.mark.paper(section="4.1")
def test_one_program_under_two_names_has_separate_streams() -> None:
    cluster = Cluster()
    master = Master(cluster)
    submit(master, topology())
    submit(master, topology("other"), "r2")
    known = cluster.catalog()
    for name in ("zeitgeist", "other"):
        incarnations = known.topologies[name].incarnations
        (reader,) = known.consumers(f"{name}/queries")
        assert reader.incarnation == incarnations["window-counter"]
        assert known.producers(f"{name}/windows") == (incarnations["window-counter"],)
    assert set(known.logs) == {f"{name}/{stream}" for name in known.topologies for stream in ("dips", "dead-letters")}
    master.call(CancelTopology("zeitgeist"))
    assert set(cluster.catalog().logs) == {"other/dips", "other/dead-letters"}


@pytest.mark.paper(section="4.2")
def test_who_reads_a_stream_declares_it_as_its_owner_does() -> None:
    cluster = Cluster()
    master = Master(cluster)
    submit(master, topology())

    def reader(record_type: str = "app.Query") -> specs.TopologySpec:
        streams = [external("zeitgeist/queries", record_type)]
        return topology("other", streams, [computation("c", {"zeitgeist/queries": "text"}, ["o"])])

    assert "its type is app.Other here and app.Query in topology 'zeitgeist'" in problems_of(
        reader("app.Other"), cluster
    )
    raw = reader("")
    raw.streams[0].format = specs.VALUE_FORMAT_RAW
    assert "its format is raw here and msgpack" in problems_of(raw, cluster)
    assert not problems_of(reader(), cluster)
    submit(master, reader(), "r2")
    master.call(CancelTopology("zeitgeist"))
    back = topology(streams=[source("queries", "app.New")], computations=[])
    assert "its type is app.New here and app.Query in topology 'other'" in problems_of(back, cluster)


@pytest.mark.paper(section="4.2")
def test_a_readers_type_reads_what_the_owner_writes() -> None:
    def kind(*fields: Any) -> Any:
        return record_schema(msgspec.defstruct("Query", fields))

    def owner(schema: Any) -> specs.TopologySpec:
        return topology(streams=[source("queries", schema=schema)], computations=[])

    def reader(schema: Any, record_type: str = "app.Mine", name: str = "other") -> specs.TopologySpec:
        mine = external("zeitgeist/queries", record_type)
        mine.schema.CopyFrom(schema)
        return topology(name, [mine], [computation("c", {"zeitgeist/queries": "text"}, ["o"])])

    cluster = Cluster()
    master = Master(cluster)
    submit(master, owner(kind(("text", str), ("at", int))))
    assert not problems_of(reader(kind(("text", str))), cluster)
    assert not problems_of(reader(record_schema(Any), "Any"), cluster)
    assert (
        "stream 'zeitgeist/queries': its type app.Mine here cannot read it as app.Query in topology 'zeitgeist' "
        "(field 'text' is written as str and read as int): declare it alike"
    ) in problems_of(reader(kind(("text", int))), cluster)
    submit(master, reader(kind(("text", str), ("more", int, 0))), "r2")
    assert not problems_of(reader(kind(("at", int)), name="third"), cluster), "two readers need not agree"
    assert (
        "its type app.Mine in topology 'other' cannot read it as app.Query here "
        "(field 'more' is written as str and read as int)"
    ) in problems_of(owner(kind(("text", str), ("at", int), ("more", str, ""))), cluster)
    assert not problems_of(owner(kind(("text", str), ("at", int), ("more", int, 0))), cluster)


def test_the_dead_letter_streams_name_is_taken() -> None:
    spec = topology()
    spec.streams.add(name="zeitgeist/dead-letters", record_type="app.Mine")
    assert "taken by the topology's dead letters" in problems_of(spec)


def test_another_topology_may_read_dead_letters_not_write_them() -> None:
    cluster = Cluster()
    master = Master(cluster)
    submit(master, topology())
    taking = topology("t", [source("in")], [computation("c", {"in": "k"}, ["zeitgeist/dead-letters"])])
    assert "the stream belongs to topology 'zeitgeist'" in problems_of(taking, cluster)
    reading = topology("t", [], [computation("c", {"zeitgeist/dead-letters": "key"}, ["out"])])
    reading.streams.add(name="zeitgeist/dead-letters", external=True)
    assert not problems_of(reading, cluster)


@pytest.mark.paper(section="4.1")
def test_another_topologys_stream_can_be_read_if_it_is_known() -> None:
    cluster = Cluster()
    reader = topology("reader", [], [computation("r", {"zeitgeist/windows": "query"}, ["out"])])
    assert "no computation or injector produces this stream" in problems_of(reader, cluster)
    master = Master(cluster)
    submit(master, topology())
    assert not problems_of(reader, cluster)
    submit(master, reader)
    assert [one.topology for one in cluster.catalog().consumers("zeitgeist/windows")] == ["reader", "zeitgeist"]


@pytest.mark.paper(section="4.5")
def test_cycles_are_refused_unless_declared_as_feedback() -> None:
    def ring(feedback: tuple[str, ...]) -> specs.TopologySpec:
        return topology(
            "ring",
            [source("in")],
            [
                computation("a", {"in": "k", "back": "k"}, ["there"], feedback),
                computation("b", {"there": "k"}, ["back"]),
            ],
        )

    assert "a cycle: a -> (ring/there) -> b -> (ring/back) -> a" in problems_of(ring(()))
    assert not problems_of(ring(("back",)))


def mending(action: specs.FailureAction.ValueType) -> specs.TopologySpec:
    """A computation, and another that reads the dead letters of its topology."""
    spec = topology(
        "mended",
        [source("in")],
        [computation("a", {"in": "k"}, ["out"]), computation("mend", {"mended/dead-letters": "key"}, ["mended"])],
    )
    spec.computations[0].failure_policy.action = specs.FAILURE_ACTION_DEAD_LETTER
    spec.computations[1].failure_policy.action = action
    return spec


@pytest.mark.guarantee("G8", section="4.5")
def test_who_mends_dead_letters_and_writes_none_is_in_no_cycle() -> None:
    assert not problems_of(mending(specs.FAILURE_ACTION_RETRY))
    assert not problems_of(mending(specs.FAILURE_ACTION_STOP))
    reported = problems_of(mending(specs.FAILURE_ACTION_DEAD_LETTER))
    assert "a cycle: mend -> (mended/dead-letters) -> mend" in reported


@pytest.mark.paper(section="4.5")
def test_cycles_across_topologies_are_refused_too() -> None:
    cluster = Cluster()
    master = Master(cluster)
    first = topology("first", [source("in")], [computation("a", {"in": "k"}, ["there"])])
    submit(master, first)
    submit(master, topology("second", [], [computation("b", {"first/there": "k"}, ["back"])]), "r2")
    first.computations[0].inputs.add(stream="second/back", key=specs.KeySpec(fields=["k"]))
    assert "a -> (first/there) -> second/b -> (second/back) -> a" in problems_of(first, cluster)


@pytest.mark.paper(section="4.3")
def test_a_source_without_readers_has_a_log_from_the_beginning() -> None:
    cluster = Cluster()
    submit(Master(cluster), topology(streams=[source("zeitgeist/queries"), source("idle")]))
    assert set(cluster.catalog().logs) == {"zeitgeist/idle", "zeitgeist/dips", "zeitgeist/dead-letters"}
    submit(Master(cluster), topology("sources", [source("alone")], []))
    assert "sources/alone" in cluster.catalog().logs


def test_a_submission_with_problems_changes_nothing() -> None:
    cluster = Cluster()
    master = Master(cluster)
    revision = cluster.state.revision
    with pytest.raises(RequestError) as caught:
        submit(master, topology(streams=[], computations=[]))
    assert caught.value.code is FailureCode.INVALID_ARGUMENT
    assert [problem.where for problem in caught.value.problems] == ["topology 'zeitgeist'"]
    assert cluster.state.revision == revision


@pytest.mark.guarantee("G11")
def test_maps_that_break_coverage_are_refused_when_read() -> None:
    cluster = Cluster()
    submit(Master(cluster, settings=MasterSettings(intervals_per_computation=3)), topology())
    interval_map = cluster.catalog().maps[cluster.catalog().topologies["zeitgeist"].incarnations["window-counter"]]
    del interval_map.record.intervals[1]
    with pytest.raises(ValueError, match="overlap or leave a gap"):
        IntervalMap(IncarnationId("x"), interval_map.record)
