"""watermark show and explain, and key inspect, against a server that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millwheel.cli.injector import app
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.injection_pb2 import InjectorStatus
from tests.system import words as program
from tests.system.server import Finished, Server, run_cli
from tests.system.speaking import SOURCE, submit_source
from tests.system.words import Word

TIMED = SOURCE.replace(
    'ctx.produce("seen", Seen(text, state.times))',
    'ctx.set_timer(mw.Timestamp(9_000_000), text, hold=mw.Timestamp(2_500_000) if text == "hold" else None)\n'
    '        if text == "fail":\n'
    '            raise ValueError("I do not like it")',
).replace("on_failure=mw.dead_letter(after=1)", "on_failure=mw.retry()")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "db", tmp_path / "server.log") as made:
        await submit_source(made, "words", TIMED)
        yield made


async def explained(server: Server, part: str, computation: str = "words/count") -> Finished:
    """What explain says, as soon as it says ``part``."""
    until = asyncio.get_running_loop().time() + 15
    while True:
        answer = await run_cli(server.address, "watermark", "explain", computation)
        assert answer.code == 0, answer.err
        if part in answer.out or asyncio.get_running_loop().time() > until:
            assert part in answer.out
            return answer


@pytest.mark.guarantee("G8")
async def test_explain_names_each_kind_of_hold_on_a_watermark(server: Server) -> None:
    answer = await explained(server, "no injector process has announced itself")
    assert "low watermark of words/count: -inf" in answer.out
    assert "words/count waits for source words/spoken  (-inf)" in answer.out
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.send(Word("plain"), timestamp=1_000_000)
        await injector.advance(2_000_000)
        await injector.flush()
        await explained(server, "injector process 'reader' last published 1970-01-01T00:00:02Z")
        await injector.send(Word("hold"), timestamp=2_600_000)
        await injector.advance(4_000_000)
        await injector.flush()
        await explained(server, "key 'hold'")
        as_json = await run_cli(server.address, "watermark", "explain", "words/count", "-o", "json")
        (step,), cause = json.loads(as_json.out)["chain"], json.loads(as_json.out)["cause"]
        assert step["name"] == "words/count"
        assert (
            "a hold on state, or of a timer: timer 'hold' of key 'hold' waits until its low watermark is"
            in step["text"]
        )
        assert (cause["kind"], cause["name"]) == ("injector", "source words/spoken"), "that timer waits for the input"
        assert json.loads(as_json.out)["low_watermark_us"] == 2_500_000
        await injector.advance(10_000_000)
        await explained(server, "1970-01-01T00:00:10Z")
        await injector.send(Word("fail"), timestamp=11_000_000)
        await injector.advance(20_000_000)
        answer = await explained(server, "key 'fail' waits for its next attempt")
        assert "a record that it received is not committed" in answer.out
        await server.kill()
        gone = await run_cli(server.address, "watermark", "explain", "words/count")
        assert gone.code == 4
        assert "start-dev" in gone.err
        await injector.close()


@pytest.mark.guarantee("G8", section="5.2")
async def test_an_operator_can_finish_a_process_that_is_lost_for_good(server: Server) -> None:
    async with Injector("spoken", address=server.address, process="gone", topology=program.words) as gone:
        await gone.advance(1_000_000)
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.idle()
        answer = await explained(server, "injector process 'gone'")
        await injector.advance(5_000_000)
        unknown = await run_cli(server.address, "injector", "finish", "spoken", "gnoe", "--yes")
        assert unknown.code == 3
        assert "did you mean 'gone'" in unknown.err
        asked = await run_cli(server.address, "injector", "finish", "spoken", "gone")
        assert asked.code == 2
        assert asked.err.startswith("End injector process gone of stream spoken, for good? [y/N]")
        answer = await run_cli(server.address, "injector", "finish", "spoken", "gone", "--yes", "-o", "json")
        assert answer.code == 0, answer.err
        assert json.loads(answer.out) == {"stream": "spoken", "process": "gone", "state": "finished"}
        again = await run_cli(server.address, "injector", "finish", "spoken", "gone", "--yes")
        assert again.code == 6
        assert "has finished, and that is final" in again.err
        early = await run_cli(server.address, "injector", "retire", "spoken", "reader", "--yes")
        assert early.code == 6
        assert "finish it first: `millwheel injector finish words/spoken reader`" in early.err
        retired = await run_cli(server.address, "injector", "retire", "spoken", "gone", "--yes")
        assert (retired.code, retired.out) == (0, "injector process gone of stream spoken is retired\n"), retired.err
        again = await run_cli(server.address, "injector", "retire", "spoken", "gone", "--yes", "-o", "json")
        assert json.loads(again.out) == {"stream": "spoken", "process": "gone", "state": "retired"}
        listed = await run_cli(server.address, "injector", "list", "spoken", "-o", "json")
        assert [one["process"] for one in json.loads(listed.out)] == ["reader"]
        assert 0 <= json.loads(listed.out)[0]["silence_us"] < 240_000_000, "it has just reported"
        await injector.send(Word("plain"), timestamp=6_000_000)
        await injector.advance(7_000_000)
        await injector.flush()
        await explained(server, "1970-01-01T00:00:07Z")


@pytest.mark.guarantee("G8", section="5.2")
async def test_an_operator_can_advance_a_quiet_stream(server: Server) -> None:
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.advance(5_000_000)
        await injector.idle()
    quiet = await explained(server, "injector process 'reader' is idle")
    assert "raise it by `millwheel injector advance words/spoken reader --to now`. Only if it never" in quiet.out
    assert "no other process is left: `millwheel injector finish words/spoken reader`" in quiet.out
    advance = ("injector", "advance", "spoken", "reader", "--to")
    asked = await run_cli(server.address, *advance, "now")
    assert asked.code == 2
    assert "If such a process runs, it ends." in asked.err
    unknown = await run_cli(server.address, "injector", "advance", "spoken", "raeder", "--to", "now", "--yes")
    assert unknown.code == 3
    for time in ("noon", "2026-01-31T12:00:00"):
        wrong = await run_cli(server.address, *advance, time, "--yes")
        assert wrong.code == 2
        assert "is neither now nor a time" in wrong.err
    done = await run_cli(server.address, *advance, "2026-01-31T12:00:00Z", "--yes")
    said = "injector process reader of stream spoken has promised 2026-01-31T12:00:00Z, and is idle\n"
    assert (done.code, done.out) == (0, said), done.err
    await explained(server, "2026-01-31T12:00:00Z")
    done = await run_cli(server.address, *advance, "2026-01-31T13:00:00+01:00", "--yes", "-o", "json")
    assert json.loads(done.out)["watermark"] == "2026-01-31T12:00:00Z"
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.send(Word("plain"), timestamp=1_769_860_900_000_000)
        await injector.advance(1_769_861_000_000_000)
        await injector.flush()
        await explained(server, "2026-01-31T12:03:20Z")
    last = await run_cli(server.address, "injector", "finish", "spoken", "reader")
    assert last.err.startswith("It is the last process of the stream, so the stream takes no more records. End")


async def test_a_topology_is_described_with_its_late_records(server: Server) -> None:
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.advance(5_000_000)
        await explained(server, "1970-01-01T00:00:05Z")
        await injector.send(Word("plain"), timestamp=2_000_000)
        await injector.flush()
    until = asyncio.get_running_loop().time() + 30
    said = "late records since the present owners took over: count 1 late, of which 0 had no effect"
    while said not in (answer := await run_cli(server.address, "topology", "describe", "words")).out:
        assert asyncio.get_running_loop().time() < until, answer.out
    assert "\ncalls since the present owners took over; " in answer.out
    shown = await run_cli(server.address, "topology", "describe", "words", "-o", "json")
    (count,) = json.loads(shown.out)["computations"]
    assert (count["late"], count["dropped"]) == (1, 0)


async def test_a_query_is_retired(server: Server) -> None:
    async with ControlClient(server.address) as client:
        await client.commit_batch("query", 3)
    retired = await run_cli(server.address, "injector", "retire-query", "query", "--yes")
    assert (retired.code, retired.out) == (0, "query query is retired\n"), retired.err
    again = await run_cli(server.address, "injector", "retire-query", "query", "--yes", "-o", "json")
    assert json.loads(again.out) == {"query": "query", "retired": True}


async def test_show_has_a_row_for_each_source_and_computation(server: Server) -> None:
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.send(Word("plain"), timestamp=1_000_000)
        await injector.advance(2_000_000)
        await injector.flush()
        await explained(server, "1970-01-01T00:00:02Z")
        shown = await run_cli(server.address, "watermark", "show", "-o", "json")
        assert shown.code == 0, shown.err
        rows = json.loads(shown.out)
        assert [(row["kind"], row["name"], row["low_watermark"], row["held_by"]) for row in rows] == [
            ("source", "words/spoken", "1970-01-01T00:00:02Z", "injector process reader"),
            ("computation", "count", "1970-01-01T00:00:02Z", "input: source words/spoken"),
        ]
        assert all(row["lag_seconds"] > 0 for row in rows)
        table = await run_cli(server.address, "watermark", "show", "words")
        assert table.out.splitlines()[0].split() == [
            "TOPOLOGY",
            "KIND",
            "NAME",
            "LOW",
            "WATERMARK",
            "LAG",
            "HELD",
            "BY",
        ]
        await injector.send(Word("plain"), timestamp=5_000_000)
        await injector.flush()
        near = await run_cli(server.address, "watermark", "show", "words", "--percentile", "99", "-o", "json")
        found = [(row["low_watermark_us"], row["percentile_watermark_us"]) for row in json.loads(near.out)]
        assert found == [(2_000_000, 5_000_000)] * 2, "nothing is at work: as far as the newest record"
        await injector.finish()
    await explained(server, "nothing holds words/count")
    ended = await run_cli(server.address, "watermark", "show", "-o", "yaml")
    assert "lag_seconds: null" in ended.out
    assert 'held_by: "nothing: it has ended"' in ended.out


async def test_explain_of_a_cancelled_computation_reports_that(server: Server) -> None:
    cancelled = await run_cli(server.address, "topology", "cancel", "words", "--yes")
    assert cancelled.code == 0, cancelled.err
    answer = await explained(server, "held by words/count: its topology is cancelled")
    assert "worker's log" not in answer.out


async def test_key_inspect_shows_state_timers_and_holds(server: Server) -> None:
    async with Injector("spoken", address=server.address, process="reader", topology=program.words) as injector:
        await injector.send_many([Word("hold")] * 3, [3_000_000] * 3)
    answer = await run_cli(server.address, "key", "inspect", "words/count", "hold", "-o", "json")
    found = json.loads(answer.out)
    assert found["state"]["times"] == 3
    assert [(one["tag"], one["timestamp_us"], one["clock"]) for one in found["timers"]] == [
        ("hold", 9_000_000, "watermark")
    ]
    assert found["timers"][0]["hold"] == "1970-01-01T00:00:02.500000Z"
    table = await run_cli(server.address, "key", "inspect", "words/count", "hold")
    assert '"times":3' in table.out
    nothing = await run_cli(server.address, "key", "inspect", "words/count", "nobody")
    assert (nothing.code, "state                none" in nothing.out, "no timers" in nothing.out) == (0, True, True)


async def test_wrong_names_are_reported(server: Server) -> None:
    for arguments, code, part in [
        (("key", "inspect", "words/cont", "k"), 3, "did you mean 'count'"),
        (("key", "inspect", "wrds/count", "k"), 3, "did you mean 'words'"),
        (("key", "inspect", "words", "k"), 5, "write TOPOLOGY/COMPUTATION"),
        (("key", "inspect", "words/count", "k" * 5_000), 5, "the limit is 4,096"),
        (("watermark", "explain", "words/count/3"), 5, "write TOPOLOGY/COMPUTATION"),
        (("watermark", "show", "wrds"), 3, "did you mean 'words'"),
        (("watermark", "shw"), 2, "Did you mean"),
    ]:
        answer = await run_cli(server.address, *arguments)
        assert (answer.code, answer.out) == (code, ""), arguments
        assert part in answer.err, arguments


TWO_SOURCES = """
import millwheel as mw


class Both(mw.Computation[str, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
        ctx.state += 1


both = mw.Topology("both")
both.source("first", str)
both.source("second", str)
both.add(Both, inputs={"first": mw.key(str), "second": mw.key(str)})
"""


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(("fed", "missing"), [("first", "second"), ("second", "first")])
async def test_explain_follows_the_input_that_is_furthest_behind(server: Server, fed: str, missing: str) -> None:
    await submit_source(server, "both", TWO_SOURCES, "both")
    async with Injector(f"both/{fed}", address=server.address, process="one") as injector:
        await injector.send("word", timestamp=1_000_000)
        await injector.idle()
        answer = await explained(server, "no injector process has announced itself", "both/both")
        assert f"both/both waits for source both/{missing}  (-inf)" in answer.out
        assert "idle" not in answer.out
        await injector.finish()
    answer = await explained(server, "no injector process has announced itself", "both/both")
    assert f"both/both waits for source both/{missing}  (-inf)" in answer.out


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_stream_without_processes_is_finished_for_good(server: Server) -> None:
    """Regression: a stream that no process feeds held each join, and only a process could be finished."""
    await submit_source(server, "both", TWO_SOURCES, "both")
    async with Injector("both/first", address=server.address, process="one") as injector:
        await injector.send("word", timestamp=1_000_000)
        await injector.advance(2_000_000)
        answer = await explained(server, "`millwheel injector finish both/second --all`", "both/both")
        assert "both/both waits for source both/second  (-inf)" in answer.out
        shown = await run_cli(server.address, "watermark", "show")
        assert "no injector process has announced itself" in shown.out
        for wrong in (["finish", "both/second", "--yes"], ["finish", "both/second", "one", "--all", "--yes"]):
            assert (await run_cli(server.address, "injector", *wrong)).code == 2
        asked = await run_cli(server.address, "injector", "finish", "both/second", "--all")
        assert asked.err.startswith("End stream both/second, for good? No process can send into it later. [y/N]")
        answer = await run_cli(server.address, "injector", "finish", "both/second", "--all", "--yes", "-o", "json")
        assert json.loads(answer.out) == {"stream": "both/second", "process": None, "state": "finished"}, answer.err
        await explained(server, "injector process 'one'", "both/both")
        with pytest.raises(RequestError, match="with every injector process of it, has finished, and that is final"):
            async with Injector("both/second", address=server.address, process="late"):
                pass
        again = await run_cli(server.address, "injector", "finish", "both/second", "--all", "--yes")
        assert (again.code, again.out) == (0, "stream both/second has finished: it takes no more records\n"), again.err
    ended = await run_cli(server.address, "injector", "finish", "both/first", "--all", "--yes")
    assert ended.code == 0, ended.err
    await explained(server, "low watermark of both/both: +inf", "both/both")


@pytest.mark.guarantee("G7", section="5.2")
@pytest.mark.parametrize("known", ["forgotten", "finishes meanwhile"])
def test_the_low_watermark_says_whether_a_stream_ended(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: processes were asked. So a stream did not end whose processes the authority had forgotten."""
    finished: list[str] = []
    retired = known == "forgotten"

    async def processes(stream: str, address: str) -> tuple[list[InjectorStatus], set[str]]:
        return [InjectorStatus(process="a", finished=retired or "a" in finished, retired=retired)], set()

    async def finish(stream: str, process: str, address: str) -> None:
        finished.append(process)
        if process == "a":
            raise RequestError(FailureCode.FAILED_PRECONDITION, "it has finished", reason="INJECTOR_FINISHED")

    async def has_ended(stream: str, address: str) -> bool:
        return bool(finished)

    for name, replacement in (("_processes", processes), ("_finish", finish), ("_has_ended", has_ended)):
        monkeypatch.setattr(f"millwheel.cli.injector.{name}", replacement)
    answer = CliRunner().invoke(app, ["finish", "shop/web", "--all", "--yes"])
    assert (answer.exit_code, finished) == (0, ["none"] if retired else ["a"]), answer.output


async def test_the_process_that_will_feed_a_stream_may_promise(server: Server) -> None:
    promise = ("injector", "advance", "spoken", "later", "--to", "2026-01-31T12:00:00Z", "--yes")
    done = await run_cli(server.address, *promise)
    assert done.code == 0, done.err
    await explained(server, "2026-01-31T12:00:00Z")
