"""Injector processes that are silent, and hold the low watermark of their stream."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from millwheel.authority.metrics import AuthorityMetrics
from millwheel.authority.silences import SilentInjector, silent_injectors
from millwheel.model.time import MAX_TIMESTAMP, seconds
from tests.authority.shard import INJECTOR, STREAM, Shard


def silent(shard: Shard, opened: int = 0) -> list[tuple[str, int]]:
    return [(one.process, one.silence) for one in silent_injectors(shard.core, shard.now, opened)]


def announced(*names: str) -> Shard:
    shard = Shard()
    for sequencer, name in enumerate(names, start=1):
        shard.accept(name, sequencer, INJECTOR)
        shard.inject(name, sequencer, 10 * sequencer)
    return shard


def test_a_process_is_silent_after_half_a_minute() -> None:
    shard = announced("a", "b")
    shard.now += seconds(30)
    assert silent(shard) == []
    shard.now += 1
    assert silent(shard) == [("a", seconds(30) + 1)], "it alone holds the low watermark"
    shard.inject("a", 1, 15)
    assert silent(shard) == []


def test_who_is_idle_or_finished_is_not_silent() -> None:
    shard = announced("a")
    shard.inject("a", 1, 15, idle=True)
    shard.now += seconds(90)
    assert silent(shard) == []
    shard.inject("a", 1, MAX_TIMESTAMP)
    shard.now += seconds(90)
    assert silent(shard) == []


def test_a_process_that_has_not_begun_is_not_silent() -> None:
    shard = Shard()
    shard.expect("a")
    shard.now += seconds(90)
    assert silent(shard) == []


def test_after_a_restart_the_silence_is_since_then() -> None:
    shard = announced("a")
    shard.restart()
    opened = shard.now
    shard.now += seconds(40)
    assert silent(shard, opened) == [("a", seconds(40))]


def test_silences_are_a_metric() -> None:
    registry = CollectorRegistry()
    found = [SilentInjector(STREAM, "a", seconds(70))]
    AuthorityMetrics(registry, dict, silences=lambda: found)
    name, labels = "millwheel_authority_silent_injector_seconds", {"stream": STREAM, "process": "a"}
    assert registry.get_sample_value(name, labels) == 70
    found.clear()
    assert registry.get_sample_value(name, labels) is None


def test_a_shard_that_changes_while_it_is_read_has_none() -> None:
    registry = CollectorRegistry()

    def changing() -> list[SilentInjector]:
        raise RuntimeError("dictionary changed size during iteration")

    AuthorityMetrics(registry, dict, silences=changing)
    assert registry.get_sample_value("millwheel_authority_reports_total") == 0
