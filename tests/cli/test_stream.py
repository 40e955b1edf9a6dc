"""stream tail with its choices, and stream produce, against a server that runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from millwheel.cli.stream_tail import KeyFilter
from millwheel.cli.times import ago_or_time
from millwheel.client.injector import Injector
from millwheel.model.units import ANY_TIMESTAMP_VARIABLE
from millwheel.rpc.clock import wall_now
from tests.system.server import Finished, Server, run_cli
from tests.system.speaking import submit, submit_source

HOUR_US = 3_600_000_000
PROGRAM = """
import msgspec
import millwheel as mw

class Note(msgspec.Struct):
    user: str
    size: int = 0

notes = mw.Topology("notes")
notes.source("written", Note)
notes.source("raw", bytes)
notes.source("plain", str)
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "db", tmp_path / "server.log") as made:
        yield made


async def tail(server: Server, *options: str) -> list[Any]:
    answer = await run_cli(server.address, "stream", "tail", "written", *options, "-o", "json")
    assert answer.code == 0, answer.err
    return [json.loads(line)["value"] for line in answer.out.splitlines()]


async def produce(server: Server, *words: str, typed: str = "") -> Finished:
    return await run_cli(server.address, "stream", "produce", *words, typed=typed)


async def write(server: Server, users: Sequence[str], timestamps: Sequence[int]) -> None:
    async with Injector("written", address=server.address, process="p") as injector:
        values = [{"user": user, "size": number} for number, user in enumerate(users)]
        await injector.send_many(values, timestamps)
        await injector.idle()


@pytest.mark.paper(section="4.3")
async def test_tail_begins_at_a_time_and_shows_wanted_keys(server: Server) -> None:
    await submit_source(server, "notes", PROGRAM, "notes")
    now = wall_now()
    hours_ago = [now - ago * HOUR_US for ago in (9, 6, 3, 8, 1)]
    await write(server, ["ann", "bob", "ann", "bob", "ann"], hours_ago)
    numbers = [one["size"] for one in await tail(server, "--since", "7h", "-n", "4")]
    assert numbers == [1, 2, 3, 4], "an older record after the first one follows, too"
    assert [one["size"] for one in await tail(server, "--since", "7h", "--key", "user=bob", "-n", "2")] == [1, 3]
    assert [one["size"] for one in await tail(server, "--from", "oldest", "--key", "size=2", "-n", "1")] == [2]
    await write(server, ["eve"], [now - 2 * HOUR_US])
    finished = await run_cli(server.address, "injector", "finish", "written", "p", "--yes")
    assert finished.code == 0, finished.err
    since = await run_cli(server.address, "stream", "tail", "written", "--since", "30min", "--until-end", "-o", "json")
    assert (since.code, since.out) == (0, "")
    assert "no kept record is from" in since.err
    assert len(await tail(server, "--from", "oldest", "-n", "99")) == 6, "a stream that has ended has no more"


async def test_tail_refuses_what_contradicts_itself() -> None:
    for options, part in (
        (("--since", "1h", "--from", "now"), "leave out --from and --cursor"),
        (("--since", "1h", "--cursor", "c"), "leave out --from and --cursor"),
        (("--since", "noon"), "'noon' is neither a time such as"),
        (("--since", "2026-01-31T12:00:00"), "is neither a time such as"),
        (("--key", "ann"), "write FIELD=VALUE, or =ann"),
    ):
        answer = await run_cli("127.0.0.1:1", "stream", "tail", "written", *options)
        assert answer.code == 2, options
        assert part in " ".join(answer.err.replace("│", " ").split()), answer.err


def test_a_duration_is_before_now() -> None:
    for text, seconds in (("90s", 90), ("10m", 600), ("10min", 600), ("1h30m", 5_400), ("1.5d", 129_600)):
        assert abs(wall_now() - ago_or_time(text, "") - seconds * 1_000_000) < HOUR_US, text
    assert ago_or_time("1970-01-01T00:00:01Z", "") == 1_000_000
    assert ago_or_time("99999999999999d", "") < 0
    for text in ("10", "m", "10 m", "10x"):
        with pytest.raises(typer.BadParameter):
            ago_or_time(text, "--since")


def test_key_filters_compare_fields_and_whole_records() -> None:
    wanted = KeyFilter(["user.id=7", "user.name=Ann=Bo"])
    assert wanted.takes({"user": {"id": 7, "name": "Ann=Bo"}})
    assert not wanted.takes({"user": {"id": 70, "name": "Ann=Bo"}})
    assert wanted.without == ""
    assert not wanted.takes({"user": 7})
    assert wanted.without == "user.id"
    assert KeyFilter(["=cat"]).takes("cat")
    assert KeyFilter(["a=true", "b=[1,2]"]).takes({"a": True, "b": [1, 2]})
    assert KeyFilter([]).takes(None)


@pytest.mark.guarantee("G8", section="5.2")
async def test_produce_sends_one_record_and_leaves_nothing_behind(server: Server) -> None:
    await submit(server)
    async with Injector("spoken", address=server.address, process="reader") as reader:
        sent = await produce(server, "spoken", '{"text": "a"}', "--process", "one", "-o", "json")
        assert sent.code == 0, sent.err
        shown = json.loads(sent.out)
        assert {"stream": "words/spoken", "process": "one", "known": False, "late": False}.items() <= shown.items()
        again = await produce(server, "spoken", '{"text": "a"}', "--process", "one", "--id", shown["id"], "-o", "json")
        assert again.code == 0, "the new id can be sent again, and counts once"
        assert {"id": shown["id"], "known": True, "late": False}.items() <= json.loads(again.out).items()
        listed = await run_cli(server.address, "injector", "list", "spoken", "-o", "json")
        assert {one["process"]: one["state"] for one in json.loads(listed.out)} == {"one": "idle", "reader": "active"}
        await reader.advance(wall_now())
        await reader.flush()
        late = await produce(server, "words/spoken", "--timestamp", "2026-01-31T12:00:00Z", typed='{"text": "a"}\n')
        assert late.code == 0, late.err
        said = "the record is in words/spoken with timestamp 2026-01-31T12:00:00Z, and is late: it is behind the low"
        assert said in late.out
    for said in ("the record is in words/spoken", "words/spoken had a record of process"):
        again = await produce(server, "spoken", '{"text": "b"}', "--id", "x1", "--timestamp", "2026-01-31T12:00:00Z")
        assert again.code == 0, again.err
        assert again.out.startswith(said)
    for key, times in (("a", 2), ("b", 1)):
        found = await run_cli(server.address, "key", "inspect", "words/count", key, "-o", "json")
        assert json.loads(found.out)["state"]["times"] == times, key


async def test_produce_names_its_option_for_an_unusual_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANY_TIMESTAMP_VARIABLE, "")
    await submit(server)
    sending = ("spoken", '{"text": "a"}', "--timestamp", "1900-01-01T00:00:00Z")
    refused = await produce(server, *sending)
    assert (refused.code, refused.out) == (2, "")
    said = " ".join(refused.err.replace("│", " ").split())
    assert "1900-01-01T00:00:00Z is before 1980; if that is meant, give --any-timestamp" in said
    assert (await produce(server, *sending, "--any-timestamp")).code == 0


async def test_produce_refuses_a_record_that_is_none(server: Server) -> None:
    await submit_source(server, "notes", PROGRAM, "notes")
    for words, typed, code, part in (
        (("written", '{"user": 7}'), "", 5, "Expected `str`, got `int` - at `$.user`"),
        (("written", "{user}"), "", 2, "is no JSON"),
        (("written",), "", 2, "is no JSON"),
        (("written", '{"user": "a"}', "--timestamp", "noon"), "", 2, "neither now nor a time"),
        (("written", '{"user": "a"}', "--process", "a/b"), "", 5, "a name without a slash"),
        (("raw", "7"), "", 5, "give a JSON string"),
        (("wrotten", "7"), "", 3, "did you mean"),
    ):
        refused = await produce(server, *words, typed=typed)
        assert (refused.code, refused.out) == (code, ""), (words, refused)
        assert part in " ".join(refused.err.replace("│", " ").split()), (words, refused.err)
    sent = await produce(server, "raw", '"text"')
    assert sent.code == 0, sent.err
    listed = await run_cli(server.address, "injector", "list", "-o", "json")
    assert {one["state"] for one in json.loads(listed.out)} == {"idle"}, "a refused record holds no low watermark"
