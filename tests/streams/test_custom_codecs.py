"""Streams with an encoding of the user's: steps that hash values take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_767_268_800_000_000)


class Page:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Page) and other.name == self.name


CODEC: mw.Codec[Page] = mw.Codec(lambda page: page.name.encode(), lambda encoded: Page(encoded.decode()))


def name_of(page: Page) -> str:
    return page.name


async def ask(page: Page) -> str:
    return page.name


def join(page: Page, rules: Mapping[str, str]) -> str:
    return page.name + "".join(rules.values())


STEPS: dict[str, Callable[[Any], Any]] = {
    "enrich": lambda pages: pages.enrich("out", ask),
    "sample": lambda pages: pages.sample(1.0).map(name_of).named("out"),
    "broadcast": lambda pages: pages.join_broadcast(
        "out", pages.topology.source("rules", str).key_by(mw.everything), join
    ),
    "spread": lambda pages: (
        pages.key_by(name_of)
        .window(windows.tumbling(mw.minutes(1)))
        .aggregate("parts", agg.count(), spread=2)
        .map(lambda result: result.key, str)
        .named("out")
    ),
}


@pytest.mark.parametrize("build", STEPS.values(), ids=STEPS)
def test_steps_hash_values_by_the_codec_of_the_stream(build: Callable[[Any], Any]) -> None:
    topology = mw.Topology("t")
    build(topology.source("pages", Page, codec=CODEC))
    harness = TopologyHarness(topology)
    harness.send("pages", Page("a"), timestamp=NOON)
    harness.finish()
    assert harness.values("out") == ["a"]
    harness.close()


def test_a_value_without_an_encoding_says_so() -> None:
    topology = mw.Topology("t")
    topology.source("names", str).map(Page, Page).enrich("out", ask)
    harness = TopologyHarness(topology)
    with pytest.raises(mw.KeyExtractionError, match="a value of Page has no encoding to be hashed by: use key_by"):
        harness.send("names", "a", timestamp=NOON)
    harness.close()
