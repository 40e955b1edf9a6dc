"""Who may read a stream: what ``read_log`` and Spark say if they are refused, and that they go on afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.injector import InjectorError
from millwheel.connectors import LogError, LogPosition, SplitReader, read_log
from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import ENVIRONMENT, TlsFiles, TokenSource
from tests.access.identities import Identities, grant
from tests.patience import patience, until
from tests.system import words
from tests.system.server import ROOT, Server, run_cli

READS = grant("certificate:reader", ("read", "inject"), ("words",)) + grant("token:spark", ("read", "inject"))
OTHERS = grant("certificate:dev", ("admin",)) + grant("token:eve", ("read",), ("billing",))


class Guarded:
    """A server with TLS and a policy, whose stream ``words/seen`` has records, and who asks in this process."""

    def __init__(self, identities: Identities, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.identities = identities
        self.address = server.address
        self._patch = monkeypatch

    def ask_as(self, files: TlsFiles, token: str = "") -> None:
        """From now on, clients of this process show these files, and the token."""
        self._patch.setattr("millwheel.rpc.identity.chosen", [files])
        self._patch.setattr("millwheel.rpc.identity.chosen_token", [TokenSource(token) if token else None])

    async def say(self, *texts: str) -> None:
        """Send words. The first one submits the topology."""
        dev = self.identities.certificate("dev")
        tls = ("--tls-ca", str(dev.ca), "--tls-cert", str(dev.cert), "--tls-key", str(dev.key))
        for command in (
            ("topology", "submit", f"{words.__file__}:words", "--wait", f"{patience(20):g}"),
            *(("stream", "produce", "words/spoken", f'{{"text": "{text}"}}') for text in texts),
        )[0 if "first" in texts else 1 :]:
            done = await run_cli(self.address, *tls, *command)
            assert done.code == 0, done.err


@pytest.fixture
async def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    identities = Identities(tmp_path / "certificates")
    own = identities.server
    for name, path in zip(ENVIRONMENT, (own.ca, own.cert, own.key), strict=True):
        monkeypatch.setenv(name, str(path))  # for the server
    policy = ("--policy", str(identities.policy(READS + OTHERS)))
    async with Server(tmp_path / "db", tmp_path / "server.log", options=(*policy, "--no-ui")) as server:
        made = Guarded(identities, server, monkeypatch)
        await made.say("first")
        yield made


def refusals(identities: Identities) -> list[tuple[TlsFiles, str, str]]:
    """Files and tokens that are refused, and what the error says."""
    plain, stranger = identities.certificate("reader"), Identities(identities.folder / "stranger").certificate("reader")
    mixed = TlsFiles(identities.server.ca, stranger.cert, stranger.key)
    old = identities.certificate("late", ends_in=timedelta(hours=-1))
    return [
        (
            identities.certificate("guest"),
            "",
            "certificate:guest may not call .*it needs role [a-z ]+ for topology 'words'",
        ),
        (mixed, "", rf"{stranger.cert}.*"),
        (old, "", rf"{old.cert}.*"),
        (plain, identities.token("spark", aud="billing"), "the token is refused"),
        (plain, identities.token("spark", exp=1), "the token is refused"),
        (plain, identities.token("eve"), "token:eve may not call .*it needs role [a-z ]+ for topology 'words'"),
    ]


async def values(reader: SplitReader[words.Seen, LogPosition], count: int) -> tuple[list[str], LogPosition]:
    """The texts of so many records, and the position behind them."""
    found: list[str] = []

    async def read() -> LogPosition | None:
        got = await reader.read()
        found.extend(value.text for value, _ in got.records if isinstance(value, words.Seen))
        return got.position if len(found) >= count else None

    return found, await until(read, patience(20))


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.timeout(240)
async def test_a_log_that_is_refused_says_who_and_where(guarded: Guarded) -> None:
    source = read_log("words/seen", words.Seen, address=guarded.address, start="earliest")
    at_offset = read_log("words/seen", words.Seen, address=guarded.address, start={"words/seen": 0})
    for files, token, why in refusals(guarded.identities):
        guarded.ask_as(files, token)
        for one in (source, at_offset):
            with pytest.raises(
                LogError, match=rf"'words/seen' is refused at {guarded.address}, .* certificate: .*{why}"
            ):
                await one.open_reader("words/seen", None)
    guarded.ask_as(guarded.identities.certificate("reader"))
    reader = await source.open_reader("words/seen", None)
    try:
        await guarded.say("second")
        found, position = await values(reader, 2)
        guarded.identities.policy(OTHERS)  # the role is taken away, and the open stream ends

        async def ends() -> bool:
            try:
                await reader.read()
            except RequestError as error:
                return error.reason in ("ROLE_MISSING", "CREDENTIAL_REVOKED")
            return False

        await until(ends, patience(20), every=0.1)
    finally:
        await reader.close()
    with pytest.raises(LogError, match="certificate:reader may not call"):
        await source.open_reader("words/seen", position)
    await guarded.say("third")
    guarded.identities.policy(READS + OTHERS)

    async def opened() -> SplitReader[words.Seen, LogPosition] | None:
        try:
            return await source.open_reader("words/seen", position)
        except LogError:
            return None  # the policy is read every two seconds

    reader = await until(opened, patience(20), every=0.2)
    try:
        assert (await values(reader, 1))[0] == ["third"]
        assert found == ["first", "second"]
    finally:
        await reader.close()


def _steps_of_spark(address: str) -> dict[str, Callable[[], Any]]:
    """What Spark's processes do first: for a write, for a task, and for a read."""
    pytest.importorskip("pyspark")
    from millwheel.injectors.batches import open_task
    from millwheel.injectors.spark.driver import announce, resolve
    from millwheel.injectors.spark.loop import run
    from millwheel.injectors.spark.options import parse_options
    from millwheel.injectors.spark.read_options import parse_read_options
    from millwheel.injectors.spark.readers import find_readable

    common = {"address": address, "patience": "1 second"}
    writes = parse_options({**common, "stream": "words/spoken", "id_column": "id", "timestamp_column": "at"})
    read = parse_read_options({**common, "stream": "words/seen"})
    return {
        "write": lambda: announce(resolve(writes)),
        "task": lambda: run(open_task(writes, 1)),
        "read": lambda: find_readable(read),
    }


@pytest.mark.timeout(240)
async def test_spark_that_is_refused_says_who_and_why(guarded: Guarded) -> None:
    steps = _steps_of_spark(guarded.address)
    for files, token, why in refusals(guarded.identities):
        guarded.ask_as(files, token)
        for name, step in steps.items():
            with pytest.raises((RequestError, InjectorError), match=why) as refused:
                await asyncio.to_thread(step)
            assert re.search("get a token|grant it|use a certificate|renew", str(refused.value)), name
    spark = guarded.identities
    guarded.ask_as(spark.certificate("guest"), spark.token("spark"))
    assert await asyncio.to_thread(steps["write"]) > 0


@pytest.mark.timeout(300)
async def test_a_spark_job_that_is_refused_shows_the_reason(guarded: Guarded, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from tests.spark.jobs import write_trips

    write_trips(tmp_path / "in", range(10), "0")
    plain, wrong = guarded.identities.certificate("guest"), guarded.identities.token("spark", aud="billing")
    files = dict(zip(ENVIRONMENT, map(str, (plain.ca, plain.cert, plain.key)), strict=True))
    command = [sys.executable, "-m", "tests.spark.jobs", guarded.address, str(tmp_path)]
    environment = {**os.environ, **files, "MILLWHEEL_TOKEN": wrong, "PYTHONPATH": str(ROOT)}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=patience(240), check=False
    )
    assert done.returncode == 1, done.stderr[-4_000:]
    assert "the token is refused" in done.stderr
    assert "get a token for this cluster" in done.stderr
    assert wrong not in done.stderr
