"""Entries for steps that treat each record by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec

import millwheel as mw
from simulation.blocks.operators.base import Flow, Operator, Row, made, operator
from simulation.blocks.records import Item

__all__ = ["LONGEST_ANSWER"]


LONGEST_ANSWER = 20
"""How many milliseconds the service may take."""


async def _answer(item: Item) -> Item:
    """A service that is slow, and sometimes unavailable."""
    await asyncio.sleep(0.001 * (sum(item.ids) % (LONGEST_ANSWER + 1)))
    if random.random() < 0.15:
        raise ValueError("the service is away")
    return made([item], "answered")


@operator("enrich")
class _Enrich(Operator):
    """Each record has one answer, even if the service was called several times."""

    def draw(self, chance: Random) -> list[Any]:
        return [chance.random() < 0.5, chance.choice((0, 2)), chance.random() < 0.5]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        keyed, retries, otherwise = arguments
        stream: Any = flow.all.key_by("a") if keyed else flow.all
        instead = (lambda item: made([item], "answered")) if otherwise else None
        calls = {"concurrency": 4, "retries": retries, "backoff": mw.milliseconds(20), "otherwise": instead}
        stream.enrich(flow.name, _answer, **calls, **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        return [row._replace(b="answered") for row in rows]


@operator("sample")
class _Sample(Operator):
    """All records of a key are chosen, or none."""

    certain = False
    has_options = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((0.5, 0.5, 0.0, 1.0)), chance.randrange(100)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        share, seed = arguments
        flow.all.sample(share, by="a", seed=seed).named(flow.name)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        chosen = [[]] if arguments[0] == 0.0 else [sorted(rows)] if arguments[0] == 1.0 else [[], sorted(rows)]
        if sorted(one[:4] for one in found) not in [[one[:4] for one in some] for some in chosen]:
            yield f"the sample has {found}, of {rows}"


@operator("flat map")
class _FlatMap(Operator):
    """Each record becomes one or more records, which have their own hop."""

    repeats = True
    has_options = False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        def parts(item: Item) -> list[Item]:
            return [made([item], str(number)) for number in range(1 + sum(item.ids) % 3)]

        flow.all.flat_map(parts).named(flow.name)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        return [row._replace(b=str(number)) for row in rows for number in range(1 + sum(row.ids) % 3)]


@operator("dead letters")
class _DeadLetters(Operator):
    """A record reaches the sink as it is, or as a dead letter."""

    has_letters = True

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((1, 2))]

    def forgets(self, arguments: list[Any]) -> bool:
        return False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        policy = mw.dead_letter(after=arguments[0])
        first = f"{flow.name}-first"
        kept = flow.all.key_by("a").update(first, 0, _refuse, Item, state=int, on_failure=policy, **flow.options)
        lost = flow.topology.dead_letters().filter(lambda letter: letter.computation == first)
        items = lost.map(lambda letter: _lost(letter, flow.field), Item)
        kept.union(items).key_by("a").update(flow.name, 0, lambda count, item: (count + 1, [item]), Item)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        return [row._replace(b="lost" if sum(row.ids) % 5 == 0 else "kept") for row in rows]


def _lost(letter: mw.DeadLetter, field: str) -> Item:
    """The record of a dead letter, which has the value that was sent."""
    item = msgspec.msgpack.decode(letter.value, type=Item)
    return Item(item.ids, getattr(item, field), "lost", item.tainted)


def _refuse(count: int, item: Item) -> tuple[int, list[Item]]:
    if sum(item.ids) % 5 == 0:
        raise ValueError("this record is refused")
    return count + 1, [made([item], "kept")]
