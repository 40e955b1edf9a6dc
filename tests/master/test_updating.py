"""Topologies change while they run: the effect of an update on the catalog, and its refusals (sections 4.1, 7.1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millwheel.master import assignment, change_plan, updating
from millwheel.master.messages import (
    CancelTopology,
    DrainTopology,
    IntervalName,
    MergeIntervals,
    MoveInterval,
    PauseTopology,
    Progress,
    ProgressObserved,
    ResumeTopology,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.master.package_garbage import named_packages
from millwheel.master.settings import MasterSettings
from millwheel.master.updating import update_problems
from millwheel.model.catalog import Catalog, earlier_version
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MAX_TIMESTAMP, Timestamp, seconds
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.record_schema import record_schema
from tests.master.harness import Cluster, Master, computation, source, topology

SETTINGS = MasterSettings(intervals_per_computation=2)


def started() -> tuple[Cluster, Master]:
    cluster = Cluster()
    cluster.join("a")
    cluster.join("b")
    master = Master(cluster, settings=SETTINGS)
    master.call(SubmitTopology(topology(), "first"))
    return cluster, master


def sequencers(known: Catalog, incarnation: IncarnationId) -> list[int]:
    return [interval.sequencer for interval in known.maps[incarnation]]


def owners(known: Catalog, incarnation: IncarnationId) -> list[str]:
    return [interval.owner.worker_id for interval in known.maps[incarnation]]


def changed(change: Callable[[specs.TopologySpec], None]) -> specs.TopologySpec:
    spec = topology()
    change(spec)
    return spec


def with_code(spec: specs.TopologySpec) -> None:
    spec.code.digest = "cd" * 32


def without_detector(spec: specs.TopologySpec) -> None:
    del spec.computations[1]


def with_spike_detector(spec: specs.TopologySpec) -> None:
    spec.computations.append(computation("spike-detector", {"zeitgeist/windows": "query"}, ["zeitgeist/spikes"]))


@pytest.mark.guarantee("G11", section="4.1")
def test_other_code_takes_over_on_the_same_owners() -> None:
    cluster, master = started()
    before = cluster.catalog()
    record = master.call(UpdateTopology(changed(with_code), "u1"))
    after = cluster.catalog()
    assert record.version == 2
    assert record.incarnations == before.topologies["zeitgeist"].incarnations
    for incarnation in record.incarnations.values():
        assert owners(after, incarnation) == owners(before, incarnation)
        assert min(sequencers(after, incarnation)) > max(sequencers(before, incarnation))
        assert [one.journal for one in after.maps[incarnation]] == [one.journal for one in before.maps[incarnation]]
    settled = after.topologies["zeitgeist"]
    assert (settled.version, dict(settled.switching)) == (2, {})
    assert master.core.waiting_for("zeitgeist") == []


def test_a_version_has_its_own_time() -> None:
    cluster = Cluster()
    cluster.join("a")
    master = Master(cluster, settings=SETTINGS)
    first = master.call(SubmitTopology(topology(), "first"), now=seconds(7))
    assert (first.submitted_at_us, first.version_at_us) == (seconds(7), seconds(7))
    second = master.call(UpdateTopology(changed(with_code), "u1"), now=seconds(9))
    assert (second.submitted_at_us, second.version_at_us) == (seconds(7), seconds(9))


@pytest.mark.paper(section="4.1")
def test_what_an_update_does_not_change_is_not_taken_over() -> None:
    cluster, master = started()
    before = cluster.catalog()
    window = before.topologies["zeitgeist"].incarnations["window-counter"]
    detector = before.topologies["zeitgeist"].incarnations["dip-detector"]
    master.call(UpdateTopology(changed(with_spike_detector)))
    after = cluster.catalog()
    record = after.topologies["zeitgeist"]
    assert sequencers(after, window) == sequencers(before, window)
    assert sequencers(after, detector) == sequencers(before, detector)
    added = record.incarnations["spike-detector"]
    assert all(owners(after, added))
    assert all(cluster.has_journal(one.journal) for one in after.maps[added])
    assert {one.computation for one in after.consumers("zeitgeist/windows")} == {"dip-detector", "spike-detector"}
    assert "zeitgeist/spikes" in after.logs


@pytest.mark.paper(section="4.1")
def test_one_option_of_one_computation_takes_over_that_one_alone() -> None:
    cluster, master = started()
    before = cluster.catalog()

    def drop_late(spec: specs.TopologySpec) -> None:
        spec.computations[1].late_policy = specs.LATE_POLICY_DROP

    record = master.call(UpdateTopology(changed(drop_late)))
    after = cluster.catalog()
    window, detector = (record.incarnations[name] for name in ("window-counter", "dip-detector"))
    assert sequencers(after, window) == sequencers(before, window)
    assert min(sequencers(after, detector)) > max(sequencers(before, detector))


@pytest.mark.paper(section="4.1")
def test_a_computation_may_bring_its_own_code_while_others_run() -> None:
    cluster, master = started()
    before = cluster.catalog()

    def add(spec: specs.TopologySpec) -> None:
        with_spike_detector(spec)
        spec.computations[-1].code.CopyFrom(specs.CodeReference(digest="cd" * 32, entry_point="app:zeitgeist"))
        spec.computations[0].code.CopyFrom(spec.code)

    record = master.call(UpdateTopology(changed(add)))
    after = cluster.catalog()
    window = record.incarnations["window-counter"]
    assert sequencers(after, window) == sequencers(before, window), "naming the topology's own code changes nothing"
    codes = {one.computation: one.code.digest[:2] for one in after.consumers("zeitgeist/windows")}
    assert codes == {"dip-detector": "ab", "spike-detector": "cd"}


@pytest.mark.guarantee("G7", section="7.1")
def test_a_removed_computation_delivers_and_leaves_the_watermark() -> None:
    cluster, master = started()
    window = cluster.catalog().topologies["zeitgeist"].incarnations["window-counter"]
    before = sequencers(cluster.catalog(), window)

    def without_counter(spec: specs.TopologySpec) -> None:
        del spec.computations[0]
        spec.computations[0].inputs[0].stream = "zeitgeist/queries"

    master.call(UpdateTopology(changed(without_counter)))
    after = cluster.catalog()
    assert window not in {one.incarnation for one in after.consumers("zeitgeist/queries")}
    assert (window, "zeitgeist/queries") not in after.edges()
    assert window in after.producers("zeitgeist/windows"), "what it produced is not delivered yet"
    assert min(sequencers(after, window)) > max(before)
    assert after.removed_computation(window) is not None
    assert after.computation(window) is None
    journals = [one.journal for one in after.maps[window]]
    assert "removed computation window-counter" in master.core.waiting_for("zeitgeist")[0]
    master.tick(seconds(1))
    assert master.observing[-1] == "zeitgeist"
    master.handle(ProgressObserved(Progress("zeitgeist", {window: 5_000})), Timestamp(seconds(1)))
    master.run()
    assert window in cluster.catalog().producers("zeitgeist/windows")
    master.handle(ProgressObserved(Progress("zeitgeist", {window: MAX_TIMESTAMP})), Timestamp(seconds(2)))
    master.run()
    gone = cluster.catalog()
    assert window not in gone.producers("zeitgeist/windows")
    assert window not in gone.maps
    assert not any(map(cluster.has_journal, journals))


@pytest.mark.paper(section="7.1")
def test_a_removed_computation_that_comes_back_has_no_state() -> None:
    cluster, master = started()
    first = cluster.catalog().topologies["zeitgeist"].incarnations["dip-detector"]
    master.call(UpdateTopology(changed(without_detector)))
    record = master.call(UpdateTopology(topology()))
    assert record.incarnations["dip-detector"] != first
    assert [one.incarnation for one in record.removed] == [first]
    assert [one.incarnation for one in cluster.catalog().consumers("zeitgeist/windows") if not one.log] == [
        record.incarnations["dip-detector"]
    ]


def test_a_stream_whose_last_reader_is_removed_is_kept_by_a_log() -> None:
    cluster, master = started()
    assert "zeitgeist/windows" not in cluster.catalog().logs
    master.call(UpdateTopology(changed(without_detector)))
    assert "zeitgeist/windows" in cluster.catalog().logs


def test_a_repeated_update_changes_nothing() -> None:
    cluster, master = started()
    master.call(UpdateTopology(changed(with_code), "u1"))
    revision = cluster.state.revision
    assert master.call(UpdateTopology(changed(with_code), "u1", expected_version=1)).version == 2
    assert master.call(UpdateTopology(changed(with_code), "u2")).version == 2
    assert cluster.state.revision == revision
    with pytest.raises(RequestError, match="has version 2 by now, not 1"):
        master.call(UpdateTopology(topology(), "u3", expected_version=1))


def test_an_update_keeps_the_version_that_it_replaces() -> None:
    cluster, master = started()
    first = cluster.catalog().topologies["zeitgeist"]
    assert earlier_version(first) is None
    master.call(UpdateTopology(changed(with_code)))
    second = cluster.catalog().topologies["zeitgeist"]
    before = earlier_version(second)
    assert before is not None
    assert (before.version, before.spec, before.version_at_us) == (1, first.spec, first.version_at_us)
    assert {first.spec.code.digest, second.spec.code.digest} <= named_packages(cluster.catalog())
    assert first.spec.code.digest != second.spec.code.digest
    master.call(UpdateTopology(before.spec))
    third = cluster.catalog().topologies["zeitgeist"]
    assert (third.spec, third.previous.spec) == (first.spec, second.spec)


def test_a_version_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "MAX_PREVIOUS_BYTES", topology().ByteSize() - 1)
    cluster, master = started()
    master.call(UpdateTopology(changed(with_code)))
    assert not cluster.catalog().topologies["zeitgeist"].HasField("previous")


def test_no_version_is_kept_beside_one_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    larger = changed(with_code)
    larger.code.entry_point += "x" * 1_000
    monkeypatch.setattr(updating, "MAX_PREVIOUS_BYTES", topology().ByteSize() + 500)
    cluster, master = started()
    master.call(UpdateTopology(larger))
    assert not cluster.catalog().topologies["zeitgeist"].HasField("previous")
    master.call(UpdateTopology(topology()))
    assert not cluster.catalog().topologies["zeitgeist"].HasField("previous")


def test_what_an_older_release_left_is_no_earlier_version() -> None:
    record = catalog.TopologyRecord(version=4, previous=catalog.PreviousVersion(version=2))
    assert earlier_version(record) is None, "it did not write down version 3"


def refused(spec: specs.TopologySpec) -> list[str]:
    cluster, master = started()
    revision = cluster.state.revision
    with pytest.raises(RequestError) as raised:
        master.call(UpdateTopology(spec))
    assert cluster.state.revision == revision, "nothing is changed"
    return [f"{one.where}: {one.message}" for one in raised.value.problems]


def test_a_stream_with_records_on_the_way_cannot_change_its_kind() -> None:
    def retype(spec: specs.TopologySpec) -> None:
        spec.streams[1].record_type = "app.Window"

    (problem,) = refused(changed(retype))
    assert problem.startswith("stream 'zeitgeist/windows': its type is app.Window, and records of it that are on")


def test_a_stream_without_a_schema_is_compared_by_its_types_name() -> None:
    old, new = topology(), topology()
    schema = record_schema(int)
    assert schema is not None
    new.streams[1].schema.CopyFrom(schema)
    assert update_problems(old, new) == [], "an older version has stored the spec"
    new.streams[1].record_type = "app.Window"
    assert len(update_problems(old, new)) == 1


@pytest.mark.guarantee("G1", section="6.1.3")
def test_weak_productions_cannot_become_strong_under_way() -> None:
    cluster = Cluster()
    cluster.join("a")
    master = Master(cluster)
    weak = topology()
    weak.computations[0].strong_productions = False
    master.call(SubmitTopology(weak, "first"))
    with pytest.raises(RequestError) as raised:
        master.call(UpdateTopology(topology()))
    assert "its productions were weak" in raised.value.problems[0].message


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        pytest.param(lambda spec: spec.computations[0].inputs[0].key.fields.append("region"), True, id="injected"),
        pytest.param(lambda spec: spec.computations[1].inputs[0].key.fields.append("region"), False, id="strong"),
    ],
)
def test_records_that_may_come_again_keep_their_key(
    change: Callable[[specs.TopologySpec], None], refused: bool
) -> None:
    """A copy under another key would go to an interval that does not know its id."""
    _, master = started()
    if not refused:
        assert master.call(UpdateTopology(changed(change), "u1")).version == 2
        return
    with pytest.raises(RequestError, match=r"was by .*would take effect under the other key") as caught:
        master.call(UpdateTopology(changed(change), "u1"))
    assert [one.where for one in caught.value.problems] == ["computation 'window-counter'"]


@pytest.mark.guarantee("G1", section="6.1.3")
def test_weak_productions_keep_their_key() -> None:
    old, new = topology(), changed(lambda spec: spec.computations[1].inputs[0].key.fields.append("region"))
    for spec in (old, new):
        spec.computations[0].strong_productions = False
    assert [one.where for one in update_problems(old, new)] == [f"computation {new.computations[1].name!r}"]
    for spec in (old, new):
        spec.computations[1].exactly_once = False
    assert update_problems(old, new) == []


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("how", ["strong", "weak", "injected"])
def test_another_topologys_repeatable_records_keep_their_key(how: str) -> None:
    """A record of the stream's owner gets its key when it is sent, unless it is a strong production."""
    _, master = started()
    owner = topology("owner", [source("theirs")], [computation("made", {"theirs": "text"}, ["out"])])
    owner.computations[0].strong_productions = how == "strong"
    master.call(SubmitTopology(owner, "r1"))
    stream = "owner/theirs" if how == "injected" else "owner/out"
    before, after = (topology("reader", [], [computation("r", {stream: key}, [])]) for key in ("text", "region"))
    master.call(SubmitTopology(before, "r2"))
    if how == "strong":
        assert master.call(UpdateTopology(after, "u1")).version == 2
        return
    with pytest.raises(RequestError, match="under the other key"):
        master.call(UpdateTopology(after, "u1"))


def test_a_key_function_goes_by_its_qualified_name() -> None:
    old, new = topology(), topology()
    old.computations[0].inputs[0].key.CopyFrom(specs.KeySpec(function="__main__:by_user"))
    new.computations[0].inputs[0].key.CopyFrom(specs.KeySpec(function="shop:by_user"))
    assert update_problems(old, new) == []
    new.computations[0].inputs[0].key.function = "shop:by_region"
    assert len(update_problems(old, new)) == 1


def test_everything_wrong_with_an_update_is_reported_at_once() -> None:
    def spoil(spec: specs.TopologySpec) -> None:
        spec.streams[1].record_type = "app.Window"
        spec.computations[1].inputs.add(stream="zeitgeist/nowhere", key=specs.KeySpec(fields=["x"]))

    assert len(refused(changed(spoil))) == 2


def test_only_what_runs_or_is_paused_is_updated() -> None:
    _, master = started()
    master.call(DrainTopology("zeitgeist"))
    with pytest.raises(RequestError, match="is draining, and only one that runs or is paused can be updated"):
        master.call(UpdateTopology(topology()))
    with pytest.raises(RequestError, match="there is no topology 'zeitgeits'"):
        master.call(UpdateTopology(topology("zeitgeits")))


@pytest.mark.paper(section="7.1")
def test_a_paused_topology_has_no_owners_and_then_fresh_ones() -> None:
    cluster, master = started()
    before = cluster.catalog()
    incarnations = list(before.topologies["zeitgeist"].incarnations.values())
    paused = master.call(PauseTopology("zeitgeist"), 5)
    assert (paused.state, paused.state_changed_at_us) == (catalog.TOPOLOGY_STATE_PAUSED, 5)
    stands = cluster.catalog()
    for incarnation in incarnations:
        assert owners(stands, incarnation) == ["", ""]
        assert all(cluster.has_journal(one.journal) for one in stands.maps[incarnation])
    assert stands.consumers("zeitgeist/queries"), "senders keep what is due to it"
    assert not stands.is_draining("zeitgeist/queries"), "injectors may open, and wait"
    revision = cluster.state.revision
    master.call(PauseTopology("zeitgeist"))
    cluster.join("c")
    master.run()
    assert cluster.state.revision == revision + 1, "paused intervals are given to no worker"
    master.call(ResumeTopology("zeitgeist"))
    after = cluster.catalog()
    for incarnation in incarnations:
        assert all(owners(after, incarnation))
        assert min(sequencers(after, incarnation)) > max(sequencers(before, incarnation))


@pytest.mark.paper(section="7.1")
def test_an_update_of_a_paused_topology_waits_for_its_owners() -> None:
    cluster, master = started()
    master.call(PauseTopology("zeitgeist"))

    def both(spec: specs.TopologySpec) -> None:
        with_code(spec)
        with_spike_detector(spec)
        del spec.computations[1]

    record = master.call(UpdateTopology(changed(both)))
    stands = cluster.catalog()
    every = [*record.incarnations.values(), *(one.incarnation for one in record.removed)]
    assert len(every) == 3
    assert all(owners(stands, incarnation) == ["", ""] for incarnation in every)
    master.call(ResumeTopology("zeitgeist"))
    after = cluster.catalog()
    assert all(all(owners(after, incarnation)) for incarnation in every)
    assert dict(after.topologies["zeitgeist"].switching) == {}


@pytest.mark.parametrize("request_of", [PauseTopology, ResumeTopology])
def test_what_is_cancelled_is_neither_paused_nor_resumed(
    request_of: type[PauseTopology] | type[ResumeTopology],
) -> None:
    _, master = started()
    master.call(CancelTopology("zeitgeist"))
    with pytest.raises(RequestError, match="is cancelled, and only a"):
        master.call(request_of("zeitgeist"))


def test_a_repeated_cancellation_spares_a_new_topologys_name() -> None:
    cluster, master = started()
    master.call(CancelTopology("zeitgeist", "c1"))
    assert master.call(SubmitTopology(topology(), "second")).version == 2
    answer = master.call(CancelTopology("zeitgeist", "c1"))
    assert (answer.spec.name, answer.state, answer.version) == ("zeitgeist", catalog.TOPOLOGY_STATE_CANCELLED, 1)
    assert cluster.catalog().topologies["zeitgeist"].state == catalog.TOPOLOGY_STATE_RUNNING
    master.call(CancelTopology("zeitgeist", "c2"))
    assert cluster.catalog().topologies["zeitgeist"].state == catalog.TOPOLOGY_STATE_CANCELLED


def test_a_cancelled_topology_removes_draining_computations_too() -> None:
    cluster, master = started()
    master.call(UpdateTopology(changed(without_detector)))
    master.call(CancelTopology("zeitgeist"))
    assert cluster.catalog().maps == {}


@pytest.mark.paper(section="7.1")
def test_a_deposed_masters_update_is_completed_by_the_next() -> None:
    cluster, master = started()
    master.ask(UpdateTopology(changed(with_code)))
    master.step()  # the record is written, and no owner has changed yet
    before = cluster.catalog()
    assert set(before.topologies["zeitgeist"].switching) == {"window-counter", "dip-detector"}
    successor = Master(cluster, "n", SETTINGS)
    successor.run()
    after = cluster.catalog()
    assert dict(after.topologies["zeitgeist"].switching) == {}
    for incarnation in after.topologies["zeitgeist"].incarnations.values():
        assert min(sequencers(after, incarnation)) > max(sequencers(before, incarnation))


def test_a_removed_computations_own_stream_is_kept_until_it_ends() -> None:
    cluster, master = started()
    master.call(UpdateTopology(changed(without_detector)))
    assert "zeitgeist/dips" in cluster.catalog().logs, "what is pending still has to get there"
    removed = cluster.catalog().topologies["zeitgeist"].removed[0].incarnation
    master.handle(ProgressObserved(Progress("zeitgeist", {removed: MAX_TIMESTAMP})), Timestamp(1))
    master.run()
    assert "zeitgeist/dips" not in cluster.catalog().logs


def test_an_added_source_is_a_stream_that_injectors_feed() -> None:
    cluster, master = started()

    def add(spec: specs.TopologySpec) -> None:
        spec.streams.append(source("zeitgeist/models", "app.Model"))
        spec.computations[1].inputs.add(stream="zeitgeist/models", key=specs.KeySpec(fields=["query"]))

    master.call(UpdateTopology(changed(add)))
    assert "injector/zeitgeist/models" in cluster.catalog().groups_of("zeitgeist/models")


@pytest.mark.paper(section="7.1")
def test_a_merges_children_run_the_new_version_at_once() -> None:
    cluster, master = started()
    record = master.call(UpdateTopology(changed(with_code)))
    incarnation = record.incarnations["window-counter"]
    journal = next(iter(cluster.catalog().maps[incarnation])).journal
    master.call(MergeIntervals(IntervalName(journal=journal)))
    (number,) = sequencers(cluster.catalog(), incarnation)
    master.tick(seconds(10))
    assert sequencers(cluster.catalog(), incarnation) == [number]


@pytest.mark.paper(section="7.1")
def test_an_update_of_many_owners_takes_several_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_plan, "MAX_OPERATIONS", 20)
    monkeypatch.setattr(assignment, "MAX_WORKERS_PER_TRANSACTION", 6)
    cluster = Cluster()
    names = [f"w{number:02}" for number in range(30)]
    for name in names:
        cluster.join(name)
    master = Master(cluster, settings=MasterSettings(intervals_per_computation=30))
    spec = topology("wide", [source("in")], [computation("c", {"in": "k"}, [])])
    incarnation = master.call(SubmitTopology(spec, "r")).incarnations["c"]
    for name, interval in zip(names, list(cluster.catalog().maps[incarnation]), strict=True):
        master.call(MoveInterval(IntervalName(journal=interval.journal), worker=name))
    before = cluster.catalog()
    assert owners(before, incarnation) == names
    spec.code.digest = "cd" * 32
    master.call(UpdateTopology(spec))
    after = cluster.catalog()
    assert owners(after, incarnation) == names
    assert min(sequencers(after, incarnation)) > max(sequencers(before, incarnation))
    assert dict(after.topologies["wide"].switching) == {}


@pytest.mark.guarantee("G8", section="7.1")
def test_a_removed_computations_rest_is_delivered_by_any_worker() -> None:
    """The rest needs no code.

    So a worker that is made for another package may deliver it, if no other worker is left.
    """
    cluster, master = started()
    detector = cluster.catalog().topologies["zeitgeist"].incarnations["dip-detector"]
    cluster.join("bound", package="cd" * 32)
    master.call(UpdateTopology(changed(without_detector)))
    assert set(owners(cluster.catalog(), detector)) <= {"a", "b"}, "those that are made for nothing else go first"
    for worker in "ab":
        cluster.leave(worker)
    master.run()
    assert owners(cluster.catalog(), detector) == ["bound", "bound"]


def test_an_update_brings_its_retention_to_the_log() -> None:
    """Regression: the retention of a log was the one with which it was created."""
    cluster, master = started()
    log = "zeitgeist/dips"
    before = cluster.catalog().logs[log]
    stated = specs.Retention(max_age_us=5, max_bytes=7)
    master.call(UpdateTopology(changed(lambda spec: spec.streams.add(name=log, retention=stated) and None), "u1"))
    after = cluster.catalog().logs[log]
    assert after.retention == stated
    assert after.incarnation == before.incarnation
    master.call(UpdateTopology(changed(lambda spec: spec.streams.add(name=log) and None), "u2"))
    assert cluster.catalog().logs[log] == before
