"""Health names injected streams that no process feeds, while results of others wait for them."""

from __future__ import annotations

from typing import Any

from millwheel.master.health_problems import damage_problems
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import DrainTopology, OpenInjector, PauseTopology, SubmitTopology
from millwheel.master.metrics import MasterCollector
from millwheel.master.replica import MasterReplica
from millwheel.master.unfed import UNFED_AFTER, unfed_problems
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import departure_key, topology_key
from millwheel.model.key_values import KeyChange
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator

from .harness import Cluster, Master, computation, source, topology

LATER = Timestamp(UNFED_AFTER + 1)


def union(*, feedback: bool = False) -> specs.TopologySpec:
    """files-splits -> files-reader -> files; then files and web -> revenue -> by-hour."""
    streams = [source("web"), *(specs.StreamSpec(name=name) for name in ("splits", "files", "sums"))]
    finds = computation("files-splits", {}, ["splits"])
    finds.begins_by_itself = True
    reads = computation("files-reader", {"splits": "text"}, ["files"])
    ways_back = ("web",) if feedback else ()
    revenue = computation("revenue", {"files": "text", "web": "text"}, ["sums"], ways_back)
    return topology("shop", streams, [finds, reads, revenue, computation("by-hour", {"sums": "text"}, [])])


def running(spec: specs.TopologySpec) -> Master:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(spec, "r1"))
    return master


def figures_of(known: Catalog) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The samples of a leading master's metrics, by name."""

    class Leader(MasterReplica):
        """A leader, as far as metrics look at it."""

        catalog = known

    collected = MasterCollector(Leader(MemoryCoordinator(), MemoryStore(), "m:7433", ttl=1.0)).collect()
    return {one.name: [(sample.labels, sample.value) for sample in one.samples] for one in collected}


def texts(master: Master, now: Timestamp = LATER) -> list[str]:
    return [one.text for one in unfed_problems(master.cluster.catalog(), now)]


def test_a_stream_without_a_process_that_holds_others_is_named() -> None:
    master = running(union())
    assert texts(master) == [
        "source shop/web: no injector process has announced itself for 5 min. So windows and timers of "
        "shop/revenue (and 1 more) wait, also for records of other streams. To mend it, start one. Only if "
        "none will ever send into it, end the stream for good: `millwheel injector finish shop/web --all`"
    ]
    (problem,) = unfed_problems(master.cluster.catalog(), LATER)
    assert (problem.topology, problem.computation) == ("shop", "revenue")
    assert problem.runbook == "MillwheelStreamUnfed"
    assert texts(master, Timestamp(UNFED_AFTER)) == []


def test_a_stream_with_a_process_is_not_unfed() -> None:
    master = running(union())
    master.call(OpenInjector("shop/web", "gateway", knows_id_stream=True))
    assert texts(master) == []


def test_an_expected_process_that_never_came_is_named() -> None:
    """Regression: health named neither it nor its stream, as soon as another process had come."""
    spec = union()
    (web,) = (one for one in spec.streams if one.injected)
    web.expected_injectors.extend(["a", "b"])
    master = running(spec)
    master.call(OpenInjector("shop/web", "a", knows_id_stream=True))
    (text,) = texts(master)
    assert text.startswith("source shop/web: injector process b is expected, and has not announced itself for 5 min.")
    master.call(OpenInjector("shop/web", "b", knows_id_stream=True))
    assert texts(master) == []


def test_where_nothing_else_waits_no_stream_is_named() -> None:
    assert texts(running(topology())) == [], "its only stream"
    assert texts(running(union(feedback=True))) == [], "a feedback edge holds nothing"
    master = running(union())
    master.call(PauseTopology("shop"))
    assert texts(master) == []
    master = running(union())
    master.call(DrainTopology("shop"))
    assert texts(master) == [], "it takes no more processes"


def test_a_stream_counts_from_when_its_own_topology_began() -> None:
    """That of the computation that waits may have run for days."""
    master = running(union())
    reading = computation("reading", {"shop/sums": "text"}, [])
    master.call(SubmitTopology(topology("reports", [], [reading]), "r2"))
    known = master.cluster.catalog()
    known.topologies["shop"].version_at_us = UNFED_AFTER
    assert list(unfed_problems(known, LATER)) == []
    assert len(list(unfed_problems(known, Timestamp(LATER + UNFED_AFTER)))) == 1


def test_the_metric_of_the_alert_names_the_stream_and_damage() -> None:
    master = running(union())
    known = master.cluster.catalog()
    found = figures_of(known)
    assert found["millwheel_master_unfed_streams"] == [({"stream": "shop/web"}, 1)], "it began in 1970"
    assert found["millwheel_master_damaged_values"] == [({}, 0)]
    for key, of_all in ((departure_key("w2"), 0), (topology_key("shop"), 1)):
        known.apply([KeyChange(key, b"", known.revision + 1, damage="its checksum differs")])
        assert figures_of(known)["millwheel_master_damaged_values"] == [({}, of_all)], (
            "a leased value ends with its process"
        )
    departed, shop = (one.text for one in damage_problems(known, LoadBook(), {}))
    assert departed.endswith("If that one runs, restart it, so that it writes the value again")
    assert shop.endswith("restore it from a snapshot or a replica")


def test_a_scrape_amid_a_change_of_the_catalog_looks_again() -> None:
    """An alert ends if a scrape has no sample of it."""
    known = running(union()).cluster.catalog()

    class Changing(dict[Any, Any]):
        """A mapping that another thread changes while it is read for the first time."""

        reads = 0

        def items(self) -> Any:
            self.reads += 1
            if self.reads == 1:
                raise RuntimeError("dictionary changed size during iteration")
            return super().items()

    injectors = known.injectors = Changing(known.injectors)
    assert figures_of(known)["millwheel_master_unfed_streams"] == [({"stream": "shop/web"}, 1)]
    assert injectors.reads > 1
