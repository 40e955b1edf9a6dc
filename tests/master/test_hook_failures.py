"""The computations whose hooks raise, by the workers' last reports."""

from __future__ import annotations

from typing import Any

from millwheel.master.hook_failures import all_reported, hook_failures
from millwheel.master.load_book import LoadBook
from millwheel.master.loads import FRESH
from millwheel.master.messages import PauseTopology, SubmitTopology, UpdateTopology
from millwheel.master.views import view_of
from millwheel.model.catalog import Catalog
from millwheel.model.time import Timestamp
from millwheel.rpc.hook_failures import AWAITED_PROBLEM
from millwheel.rpc.v1 import inspection_pb2 as wire

from .harness import Cluster, Master, topology

NOW = 1_700_000_000_000_000


def running() -> tuple[Cluster, Master]:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    return cluster, master


def reported(known: Catalog, blocked: int = 1, later: int = 0, stopped: str = "", ago: int = 0) -> LoadBook:
    """Report ``blocked`` keys for every interval. ``later`` is added to the owners' sequencers."""
    book, response = LoadBook(), wire.GetWorkerLoadResponse()
    failure = wire.KeyFailure(key=b"k", hook="process_record", error="ValueError", attempts=2, last_us=NOW - ago)
    for owned in known.owned_by("w1"):
        load = response.intervals.add(
            journal=owned.interval.journal, sequencer=owned.interval.sequencer + later, stopped=stopped
        )
        load.failures.CopyFrom(wire.HookFailures(attempts=2, blocked_keys=blocked, last=failure))
        if blocked:
            load.failures.oldest.append(failure)
    book.on_load("w1", response, Timestamp(0))
    return book


def names(known: Catalog, book: LoadBook, **only: Any) -> list[str]:
    return [one.computation for one in hook_failures(known, book, NOW, **only)]


def test_failing_computations_are_found_by_topology_and_stream() -> None:
    known = running()[0].catalog()
    book = reported(known)
    assert names(known, book) == ["dip-detector", "window-counter"]
    assert names(known, book, topology="zeitgeist") == ["dip-detector", "window-counter"]
    assert names(known, book, topology="other") == []
    assert names(known, book, computation="dip-detector") == ["dip-detector"]
    assert names(known, book, stream="zeitgeist/queries") == ["window-counter"], "whose senders wait for its ACKs"
    (found,) = hook_failures(known, book, NOW, stream="zeitgeist/queries")
    assert found.blocks
    assert "computation zeitgeist/window-counter: " in found.text
    assert "process_record of key 'k' raises ValueError" in found.text


def test_a_computation_whose_code_cannot_be_loaded_is_found() -> None:
    """The cluster was healthy, and `interval list` and `topology describe` showed nothing."""
    known = running()[0].catalog()
    book, response = LoadBook(), wire.GetWorkerLoadResponse()
    for owned in known.owned_by("w1"):
        interval = owned.interval
        response.intervals.add(journal=interval.journal, sequencer=interval.sequencer, absence="no module 'x'")
    book.on_load("w1", response, Timestamp(0))
    found = hook_failures(known, book, NOW, computation="window-counter")
    assert [(one.text, one.blocks) for one in found] == [
        ("computation zeitgeist/window-counter does not run: no module 'x'", True)
    ]
    seen = {one.journal: one.reported for one in view_of(known, book, Timestamp(0), FRESH).intervals}
    assert seen
    assert not any(seen.values()), "balancing learns nothing of what does not run"


def test_failures_after_an_update_name_the_way_back() -> None:
    cluster, master = running()
    spec = topology()
    spec.code.digest = "cd" * 32

    def texts(began: int) -> list[str]:
        known = cluster.catalog()
        book = reported(known)
        for report in book.intervals.values():
            report.load.failures.oldest[0].since_us = began
        return [one.text for one in hook_failures(known, book, NOW)]

    hint = "`millwheel topology rollback zeitgeist` goes back to version 1"
    assert not any(hint in text for text in texts(NOW)), "there was no update"
    master.call(UpdateTopology(spec), now=NOW)
    assert all(hint in text and "version 2 of zeitgeist came at 2023-11-14T22:13:20Z" in text for text in texts(NOW))
    blocked = texts(NOW)[0]
    assert blocked.index(hint) < blocked.index("fix the code"), "what mends it at once comes first"
    assert not any(hint in text for text in texts(NOW - 1)), "it failed before"
    assert not any(hint in text for text in texts(NOW + 600_000_001)), "the update worked for a while"


def test_failures_that_block_no_key_are_news_for_a_minute() -> None:
    known = running()[0].catalog()
    (found, _) = hook_failures(known, reported(known, blocked=0, ago=5_000_000), NOW)
    assert not found.blocks
    assert "no key is blocked now" in found.text
    assert names(known, reported(known, blocked=0, ago=61_000_000)) == []
    assert names(known, reported(known, blocked=0, ago=61_000_000, stopped="by its policy")) != []


def test_what_an_owner_before_or_after_reported_does_not_count() -> None:
    known = running()[0].catalog()
    assert names(known, reported(known, later=1)) == []
    assert names(known, reported(known, later=-1)) == []


def test_a_paused_topology_fails_no_more() -> None:
    cluster, master = running()
    book = reported(cluster.catalog())
    master.call(PauseTopology("zeitgeist"))
    assert names(cluster.catalog(), book) == []


def test_an_endless_hook_is_shown_and_a_problem_after_a_minute() -> None:
    known = running()[0].catalog()
    book, response = LoadBook(), wire.GetWorkerLoadResponse()
    ages = {"window-counter": 59_000_000, "dip-detector": 120_000_000}
    for owned in known.owned_by("w1"):
        for computation, age in ages.items():
            if owned.incarnation.startswith(computation):
                load = response.intervals.add(journal=owned.interval.journal, sequencer=owned.interval.sequencer)
                load.failures.awaited.add(key=b"k1", hook="process_record", work="a record", since_us=NOW - age)
    book.on_load("w1", response, Timestamp(0))
    assert names(known, book) == ["dip-detector", "window-counter"]
    assert names(known, book, awaited_for=AWAITED_PROBLEM) == ["dip-detector"]
    (found,) = hook_failures(known, book, NOW, computation="dip-detector")
    assert found.blocks, "its senders wait for ACKs"
    assert "process_record of key 'k1' has been awaiting for 2 min" in found.text


def keys_reported(known: Catalog, ago: int = 0, waiting: bool = True) -> LoadBook:
    """The key functions of both streams of the topology raise at two workers."""
    book = LoadBook()
    for worker in ("w1", "w2"):
        response = wire.GetWorkerLoadResponse()
        for incarnation, stream in sorted(known.edges()):
            one = response.key_functions.add(
                consumer=incarnation, stream=stream, extractor="key function", error="KeyError", attempts=2
            )
            one.last_us = NOW - ago
            if waiting:
                one.waiting.add(process=f"reader-{worker}", oldest_us=1)
        book.on_load(worker, response, Timestamp(0))
    return book


def test_a_raising_key_function_is_reported_with_its_stream() -> None:
    known = running()[0].catalog()
    book = keys_reported(known)
    assert names(known, book) == ["dip-detector", "window-counter"]
    (found,) = hook_failures(known, book, NOW, stream="zeitgeist/queries")
    assert (found.computation, found.blocks) == ("window-counter", True)
    assert (
        "computation zeitgeist/window-counter: the key function of stream 'zeitgeist/queries' raises KeyError"
        in found.text
    )
    assert "(4 attempts); records of injector processes 'reader-w1', 'reader-w2' wait for their keys" in found.text
    other = LoadBook()
    for worker, report in book.workers.items():
        for one in report.load.key_functions:
            one.stream = "elsewhere"
        other.on_load(worker, report.load, Timestamp(0))
    named = names(known, other, stream="zeitgeist/queries")
    assert named == [], "what this stream's senders wait for is something else"


def test_a_key_function_nothing_waits_for_is_shown_for_a_minute() -> None:
    known = running()[0].catalog()
    (found, _) = hook_failures(known, keys_reported(known, ago=5_000_000, waiting=False), NOW)
    assert not found.blocks
    assert "no record waits for its key now" in found.text
    assert names(known, keys_reported(known, ago=60_000_000)) == []


def test_key_functions_of_removed_topologies_do_not_count() -> None:
    cluster, master = running()
    book = keys_reported(cluster.catalog())
    book.forget_gone(cluster.catalog())
    (found, _) = hook_failures(cluster.catalog(), book, NOW)
    assert "'reader-w2'" not in found.text, "no such worker is registered"
    master.call(PauseTopology("zeitgeist"))
    assert names(cluster.catalog(), book) == []


def test_whether_all_present_owners_have_reported() -> None:
    known = running()[0].catalog()
    assert not all_reported(known, LoadBook(), "zeitgeist", "dip-detector")
    assert all_reported(known, reported(known), "zeitgeist", "dip-detector")
    assert not all_reported(known, reported(known, later=-1), "zeitgeist", "dip-detector"), "of a former owner"
    assert all_reported(known, LoadBook(), "zeitgeist", "none")
    assert all_reported(known, LoadBook(), "none", "dip-detector")
