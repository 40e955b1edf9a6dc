"""key list and timer list, against a server with several intervals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millwheel.cli.key_list import keys_within
from millwheel.client.injector import Injector
from millwheel.rpc.clock import wall_now
from tests.patience import until
from tests.system.server import Finished, Server, run_cli
from tests.system.speaking import submit_source

PROGRAM = """
import msgspec
import millwheel as mw

class Alarm(msgspec.Struct):
    who: str
    at: int
    wall: bool = False
    hold: int | None = None

class Ring(mw.Computation[Alarm, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Alarm]) -> None:
        alarm = record.value
        if not alarm.wall:
            ctx.state += 1
        domain = mw.TimeDomain.PROCESSING_TIME if alarm.wall else mw.TimeDomain.EVENT_TIME
        hold = None if alarm.hold is None else mw.Timestamp(alarm.hold)
        ctx.set_timer(mw.Timestamp(alarm.at), f"at {alarm.at}", domain=domain, hold=hold)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        pass

clock = mw.Topology("clock")
clock.source("alarms", Alarm)
clock.add(Ring, inputs={"alarms": mw.key("who")})
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "db", tmp_path / "server.log", intervals=3) as made:
        await submit_source(made, "clock", PROGRAM, "clock")
        yield made


async def listed(server: Server, *words: str) -> tuple[list[dict[str, Any]], str]:
    answer = await run_cli(server.address, *words, "-o", "json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out), answer.err


async def fed(server: Server, watermark: int, *alarms: dict[str, Any]) -> None:
    async with Injector("alarms", address=server.address, process="p") as injector:
        await injector.send_many(alarms, [2_000_000] * len(alarms))
        await injector.advance(watermark)


@pytest.mark.guarantee("G6", section="4.6")
async def test_timers_of_all_intervals_are_listed_in_time_order(server: Server) -> None:
    later = wall_now() + 9_000_000_000
    await fed(
        server,
        1_000_000,
        {"who": "~", "at": 5_000_000},
        {"who": "a", "at": 7_000_000, "hold": 3_000_000},
        {"who": "P", "at": 6_000_000},
        {"who": "a", "at": later, "wall": True},
    )
    asked = wall_now()
    timers, _ = await until(
        lambda: listed(server, "timer", "list", "clock/ring"),
        holds=lambda found: [one["clock_at_us"] for one in found[0][:3]] == [1_000_000] * 3,
    )
    assert [(one["key"], one["timestamp_us"], one["clock"]) for one in timers] == [
        ("~", 5_000_000, "watermark"),
        ("P", 6_000_000, "watermark"),
        ("a", 7_000_000, "watermark"),
        ("a", later, "wall"),
    ]
    assert len({one["interval"] for one in timers}) > 1
    assert timers[2]["hold"] == "1970-01-01T00:00:03Z"
    assert asked <= timers[3]["clock_at_us"] <= wall_now()
    first, said = await listed(server, "timer", "list", "clock/ring", "--limit", "2")
    assert first == timers[:2]
    assert "there are more timers: these are the first 2" in said
    of_key, said = await listed(server, "timer", "list", "clock/ring", "--key", "a")
    assert ([one["timestamp_us"] for one in of_key], said) == ([7_000_000, later], "")
    table = await run_cli(server.address, "timer", "list", "clock/ring")
    assert "the low watermark, now 1970-01-01T00:00:01Z" in table.out
    assert "the clock, in 2 h" in table.out, "half an hour may have passed since"
    none = await run_cli(server.address, "timer", "list", "clock/ring", "--key", "nobody")
    assert (none.code, none.out) == (0, "no timers\n")


async def test_keys_are_listed_with_prefixes_and_in_pages(server: Server) -> None:
    names = [f"user-{number:02}" for number in range(12)] + ["", "a", "zz", "\U0001f600"]
    alarms: list[dict[str, Any]] = [{"who": name, "at": 5_000_000} for name in names]
    await fed(server, 1_000_000, *alarms, {"who": "w", "at": 1, "wall": True})
    keys, said = await listed(server, "key", "list", "clock/ring")
    assert [one["key"] for one in keys] == sorted(names, key=str.encode)
    assert said == ""
    assert {(one["state_bytes"], one["timers"], one["damaged"]) for one in keys} == {(1, 1, False)}
    found: list[str] = []
    options: tuple[str, ...] = ()
    while True:
        page, said = await listed(server, "key", "list", "clock/ring", "--prefix", "user", "--limit", "5", *options)
        found += [one["key"] for one in page]
        if not said:
            break
        options = ("--from", said.rpartition("--from ")[2].strip().strip("'"))
    assert found == names[:12]
    for refused, code in (("clock/rung", 3), ("clock", 5)):
        answer: Finished = await run_cli(server.address, "key", "list", refused)
        assert answer.code == code
    table = await run_cli(server.address, "key", "list", "clock/ring", "--prefix", "zzz")
    assert table.out == "no keys\n"


def test_a_prefix_and_a_first_key_bound_the_keys() -> None:
    for prefix, first, inside, outside in (
        ("ab", "", ["ab", "abz", "ab\U0010ffff"], ["aa", "ac"]),
        ("ab", "abc", ["abc", "abd"], ["ab", "abb", "ac"]),
        ("", "b", ["b", "z"], ["a"]),
        ("ab", "a", ["ab"], ["a"]),
    ):
        within = keys_within(prefix.encode(), first.encode())
        assert within is not None
        assert all(key.encode() in within for key in inside)
        assert not any(key.encode() in within for key in outside)
    assert keys_within(b"ab", b"b") is None
