"""Computations that do not ACK are named, with the reason (sections 4.5, 6.1.1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millwheel.cli.progress import InjectionProgress, ProgressText
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector, NotAckedError
from millwheel.client.injector.routing import Route
from millwheel.client.injector.stalls import AckWatch, ReasonLog
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.injectors.conftest import Submit, submit_to
from tests.injectors.inside import explained, session_of
from tests.patience import patience, until

ORDER = {"user": "u", "number": 1}


def test_a_stall_watch_distinguishes_silence_and_a_stuck_record() -> None:
    watch = AckWatch(silent=10, stuck=60)
    assert not watch.missing(0, acked=0, oldest=9, unacked=0)
    assert not watch.missing(100, acked=0, oldest=9, unacked=0)
    assert not watch.missing(109, acked=0, oldest=0, unacked=5)
    assert watch.missing(110, acked=0, oldest=0, unacked=5)
    assert not watch.missing(111, acked=1, oldest=0, unacked=4)
    for now in range(112, 169):
        assert not watch.missing(now, acked=now, oldest=0, unacked=4)
    assert watch.missing(169, acked=999, oldest=0, unacked=4)
    assert not watch.missing(170, acked=999, oldest=7, unacked=4)


def test_the_same_reason_is_logged_once_a_minute() -> None:
    reasons = ReasonLog()
    assert reasons.due(0, "t/c has not ACKed 2,000 records: next attempt in 8.6 s")
    assert not reasons.due(5, "t/c has not ACKed 1,999 records: next attempt in 3 s"), "other numbers, the same reason"
    assert reasons.due(10, "interval t/d is paused")
    assert not reasons.due(59, "t/c has not ACKed 7 records: next attempt in 3 s")
    assert reasons.due(60, "t/c has not ACKed 7 records: next attempt in 3 s")
    assert not reasons.due(69, "interval t/d is paused")
    assert reasons.due(70, "interval t/d is paused")
    assert all(reasons.due(71, f"another reason {'x' * number}") for number in range(1_000))
    assert reasons.due(72, "interval t/d is paused"), "only the newest ones are kept"


def test_progress_rewrites_its_line_on_a_terminal_only() -> None:
    plain, terminal = ProgressText(False, 0.0), ProgressText(True, 0.0)
    progress = InjectionProgress(records=5_000, skipped=2, late=1, unacked=7)
    line = "5,000 records, 500/s, 1 known before or late, 7 not ACKed, 2 lines skipped"
    assert plain.line(10.0, progress) == line + "\n"
    assert terminal.line(10.0, progress) == "\r\x1b[2K" + line
    assert plain.line(20.0, progress).startswith("5,000 records, 0/s")
    assert (plain.end(), terminal.end()) == ("", "\r\x1b[2K")
    assert terminal.message("late") == "\r\x1b[2Klate\n"


async def test_a_timeout_names_the_computation_that_does_not_ack(server: DevServer, submit: Submit) -> None:
    await submit("poisoned")
    injector = Injector("orders", address=server.address)
    await injector.open()
    await injector.send(ORDER, timestamp=5)
    with pytest.raises(NotAckedError, match=r"after 0\.2 s: poisoned/poisoned has not ACKed 1 record: interval "):
        await injector.flush(timeout=0.2)
    with pytest.raises(NotAckedError, match=r"poisoned/poisoned has not ACKed"):
        await injector.finish(timeout=0.1)
    with pytest.raises(NotAckedError, match=r"poisoned/poisoned has not ACKed"):
        await injector.close(timeout=0.1)


def routes(injector: Injector) -> list[Route]:
    """All routes of an injector."""
    return [route for consumer in session_of(injector).routing.consumers.values() for route in consumer.routes]


async def test_a_stall_is_logged_with_its_reason(
    server: DevServer, submit: Submit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millwheel.client.injector.stalls.CHECK_SECONDS", 0.01)
    monkeypatch.setattr("millwheel.client.injector.stalls.AckWatch.__init__.__defaults__", (0.1, 60.0))
    await submit("codekeyed")
    async with ControlClient(server.address) as control, Injector("orders", address=server.address) as injector:
        await injector.send(ORDER, timestamp=5)
        await injector.flush()
        await control.pause("codekeyed")
        await session_of(injector).until(lambda: not any(route.address for route in routes(injector)))
        await injector.send(ORDER, timestamp=6)
        # On a busy machine the first message may come before the reason. A later one has it.
        await until(lambda: "is paused" in injector.stall)
        assert "codekeyed/hours has not ACKed 1 record" in injector.stall
        assert injector.stall in caplog.text
        await control.resume("codekeyed")
        await asyncio.wait_for(injector.flush(), patience(20))


async def test_a_stall_names_the_key_and_what_its_hook_raises(server: DevServer, submit: Submit) -> None:
    await submit("poisoned")
    injector = Injector("orders", address=server.address)
    await injector.open()
    await injector.send(ORDER, timestamp=5)
    why = await until(lambda: explained(injector), holds=lambda why: "RuntimeError: poison" in why)
    assert "poisoned/poisoned has not ACKed 1 record: computation poisoned/poisoned: " in why
    assert "key" in why
    await injector.close()


@pytest.mark.parametrize("name", ["shop", "unread"])
async def test_a_timeout_names_the_unreachable_server_and_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("millwheel.client.injector.stalls.ASK_SECONDS", 0.5)
    async with running(DevSettings(db=tmp_path / "db", port=0)) as server:
        await submit_to(server.address, name, tmp_path)
        injector = Injector("orders", address=server.address)
        await injector.open()
        await injector.send(ORDER, timestamp=5)
        await injector.flush()
    await injector.send(ORDER, timestamp=6)
    said = r"has not ACKed 1 record: cannot reach a MillWheel server at \S+ \(.*\), since \d{4}-\d\d-\d\dT\S+Z"
    with pytest.raises(NotAckedError, match=said):
        await injector.close(timeout=0.5)
