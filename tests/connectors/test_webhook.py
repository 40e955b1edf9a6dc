"""A webhook: batches under keys that stay, to receivers that fail, hang, answer late and restart (6.1)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

import millwheel as mw
from deploy.local.child import free_ports
from millwheel import connectors
from millwheel.connectors import Sink, WebhookError
from millwheel.testing import TopologyHarness
from millwheel.testing.connectors import SinkContract
from tests.connectors.given import at, running
from tests.patience import patience


class Alert(msgspec.Struct):
    text: str
    level: int = 1


@dataclass
class Receiver:
    """A server that keeps what it takes, by key.

    ``answers``: what it says to the next calls. ``usual``: what it says then.
    """

    port: int = 0
    answers: list[Any] = field(default_factory=list)
    usual: Any = 200
    calls: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)
    """The key, the body and the headers of each call."""
    taken: dict[str, bytes] = field(default_factory=dict)
    held: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?secret=hush"

    def records(self) -> list[Any]:
        """The records of all batches that were taken, each key once."""
        return [json.loads(line) for body in self.taken.values() for line in body.splitlines()]

    @contextmanager
    def served(self) -> Iterator[None]:
        """Listen, at the same port each time."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self.port = self.port or free_ports(1)[0]
        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            self.held.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def take(self, call: BaseHTTPRequestHandler) -> None:
        key, body = call.headers["Idempotency-Key"], call.rfile.read(int(call.headers["Content-Length"]))
        self.calls.append((key, body, dict(call.headers)))
        answer = self.answers.pop(0) if self.answers else self.usual
        if answer == "hang":
            self.held.wait(patience(20))
            call.close_connection = True
            return
        if answer in ("late", "cut"):
            self.taken[key] = body
            if answer == "late":
                time.sleep(0.5)
            call.close_connection = True
            call.connection.close()
            return
        status, headers, text = answer if isinstance(answer, tuple) else (answer, {}, b"")
        if status == 200:
            assert self.taken.setdefault(key, body) == body, "a key has one body"
        call.send_response(status)
        for name, value in headers.items():
            call.send_header(name, value)
        call.send_header("Content-Length", str(len(text)))
        call.end_headers()
        call.wfile.write(text)


def alerting(url: Any, *, name: str = "alerts-hook", batch: int = 1, **options: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    topology.source("alerts", Alert).to(name, connectors.webhook(url, **options), batch_records=batch)
    return topology


def wait(harness: TopologyHarness, span: float) -> None:
    """Let some seconds pass. Writes may fail meanwhile."""
    with suppress(WebhookError):
        harness.advance_clock(mw.seconds(span))


def batches(harness: TopologyHarness) -> int:
    """How many batches are written."""
    state = harness.state("alerts-hook", "0")
    return state.batch if state is not None else 0


@pytest.mark.guarantee("G1", "G3", "G15")
class TestWebhook(SinkContract[Alert]):
    record_type = Alert
    knows_last_batch = False

    @pytest.fixture(autouse=True)
    def _receiver(self) -> Iterator[None]:
        self.receiver = Receiver()
        with ExitStack() as self.served:
            self.served.enter_context(self.receiver.served())
            yield

    def make_sink(self) -> Sink[Alert]:
        return connectors.webhook(self.receiver.url)

    def stored(self) -> Sequence[int]:
        return [record["level"] for record in self.receiver.records()]

    def value(self, number: int) -> Alert:
        return Alert("high", number)

    def number_of(self, value: Alert) -> int:
        return value.level

    @contextmanager
    def away(self) -> Iterator[None]:
        self.served.close()
        yield
        self.served.enter_context(self.receiver.served())


@pytest.mark.guarantee("G1")
def test_each_batch_has_one_key_however_it_is_answered() -> None:
    receiver = Receiver(answers=[503, 200, "hang", "late", 200, "cut", (429, {"Retry-After": "1"}, b"slowly"), 500])
    with receiver.served(), running(alerting(receiver.url, deadline=mw.seconds(0.3))) as harness:
        for number in range(6):
            with suppress(WebhookError):
                harness.send("alerts", Alert(f"a{number}"), at(number))
            while batches(harness) <= number:
                wait(harness, 10)
    assert [record["text"] for record in receiver.records()] == [f"a{number}" for number in range(6)]
    assert len(receiver.calls) == 6 + 6, "six of the answers were none"
    keys = [key for key, _, _ in receiver.calls]
    assert list(dict.fromkeys(keys)) == list(receiver.taken), "no batch overtakes another"
    assert {(key, body) for key, body, _ in receiver.calls} == set(receiver.taken.items())


@pytest.mark.guarantee("G1")
def test_a_receiver_that_restarts_gets_what_it_missed() -> None:
    receiver = Receiver()
    with receiver.served(), running(alerting(receiver.url)) as harness:
        harness.send("alerts", Alert("one"), at(1))
    with running(alerting(receiver.url)) as harness:
        with pytest.raises(WebhookError, match=r"http://127.0.0.1:\d+ cannot be reached .* with the same key"):
            harness.send("alerts", Alert("two"), at(2))
        with receiver.served():
            harness.advance_clock(mw.seconds(60))
            harness.crash()
            harness.send("alerts", Alert("three"), at(3))
    assert [record["text"] for record in receiver.records()] == ["one", "two", "three"]


def test_a_batch_names_its_shard_and_the_one_before() -> None:
    receiver = Receiver()
    with receiver.served(), running(alerting(receiver.url, batch=2)) as harness:
        for number in range(4):
            harness.send("alerts", Alert(f"{number}", number), at(number))
    (first, body, headers), (second, _, later) = receiver.calls
    assert body == b'{"text":"0","level":0}\n{"text":"1","level":1}\n'
    assert headers["Content-Type"] == "application/x-ndjson"
    assert (headers["Millwheel-Sink"], headers.get("Millwheel-After")) == ("shop/alerts-hook/0", None)
    assert later["Millwheel-After"] == first != second


@pytest.mark.parametrize(
    ("form", "batch", "body"), [("array", 2, [{"text": "a", "level": 1}] * 2), ("object", 1, None)]
)
def test_a_body_has_the_form_that_was_asked_for(form: Any, batch: int, body: Any) -> None:
    receiver = Receiver()
    with receiver.served(), running(alerting(receiver.url, form=form, batch=batch)) as harness:
        harness.send_all("alerts", [(Alert("a"), at(1)), (Alert("a"), at(2))])
    assert [json.loads(sent) for _, sent, _ in receiver.calls] == ([body] if body else [{"text": "a", "level": 1}] * 2)
    assert receiver.calls[0][2]["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            (422, {}, b"no field level" + b"x" * 100_000),
            "answered 422 to batch 1: 'no field levelx.*nothing is skipped",
        ),
        ((401, {}, b""), "answered 401 to batch 1; correct what `headers` returns"),
        ((302, {"Location": "https://elsewhere.example/"}, b""), "a redirect is not followed"),
        ((410, {"Retry-After": "soon"}, b""), "nothing is skipped"),
    ],
)
def test_a_refused_batch_is_not_skipped(answer: Any, says: str) -> None:
    receiver = Receiver(usual=answer)
    with receiver.served(), running(alerting(receiver.url)) as harness:
        with pytest.raises(WebhookError, match=says) as refused:
            harness.send("alerts", Alert("a"), at(1))
        assert "hush" not in str(refused.value)
        assert len(str(refused.value)) < 700
        harness.send("alerts", Alert("b"), at(2))
        wait(harness, 10)
        assert len({key for key, _, _ in receiver.calls}) == 1 < len(receiver.calls)
        assert receiver.taken == {}
        receiver.usual = 200
        harness.advance_clock(mw.seconds(60))
    assert [record["text"] for record in receiver.records()] == ["a", "b"]


def test_a_long_pause_is_kept() -> None:
    """The clock of the harness goes on, and that of the receiver does not: no call comes before its time."""
    later = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    receiver = Receiver(answers=[(503, {"Retry-After": later}, b"")])
    with receiver.served(), running(alerting(receiver.url)) as harness:
        with pytest.raises(WebhookError, match="answered 503"):
            harness.send("alerts", Alert("a"), at(1))
        for _ in range(3):
            wait(harness, 60)
        assert len(receiver.calls) == 1


def test_secrets_are_read_in_the_worker_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver(usual=401)

    def token() -> dict[str, str]:
        import os

        return {"Authorization": f"Bearer {os.environ['HOOK_TOKEN']}"}

    topology = alerting(lambda: receiver.url, headers=token)
    with receiver.served(), running(topology) as harness:
        with pytest.raises(KeyError, match="HOOK_TOKEN"):
            harness.send("alerts", Alert("a"), at(1))
        monkeypatch.setenv("HOOK_TOKEN", "old")
        wait(harness, 60)
        receiver.usual = 200
        monkeypatch.setenv("HOOK_TOKEN", "new")
        wait(harness, 60)
    sent = [headers["Authorization"] for _, _, headers in receiver.calls]
    assert sent == ["Bearer old"] * (len(sent) - 1) + ["Bearer new"]
    assert len(sent) > 1


@pytest.mark.parametrize(
    ("url", "options", "wrong"),
    [
        ("ftp://x/", {}, "a URL such as"),
        ("https://", {}, "a URL such as"),
        ("https://x:port/hush", {}, "a URL such as"),
        (7, {}, "a URL such as"),
        ("https://ada:hush@x/", {}, "no password"),
        ("https://x/", {"form": "xml"}, "no form 'xml'"),
        ("https://x/", {"headers": {"Authorization": "hush"}}, "a function that returns the headers"),
        ("https://x/", {"deadline": mw.seconds(51)}, "at most 50 seconds"),
        ("https://x/", {"deadline": mw.seconds(0)}, "at most 50 seconds"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(url: Any, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(mw.UsageError, match=wrong) as refused:
        connectors.webhook(url, **options)
    assert "hush" not in str(refused.value)


def test_what_only_the_worker_knows_is_refused_there() -> None:
    receiver = Receiver()
    with receiver.served():
        for url, options, wrong in (
            ("http://x y/", {}, "."),
            (receiver.url, {"headers": lambda: {"idempotency-key": "mine"}}, "is set by the sink"),
            (receiver.url, {"headers": lambda: {"Authorization": b"hush"}}, "no text for the header 'Authorization'"),
            (receiver.url, {"headers": lambda: {"Authorization": "hush\n"}}, "a line break"),
            (receiver.url, {"form": "object", "batch": 2}, "batch_records=1"),
        ):
            given: dict[str, Any] = options
            topology = alerting(partial(str, url), **given)
            with running(topology) as harness, pytest.raises(WebhookError, match=wrong) as refused:
                harness.send_all("alerts", [(Alert("a"), at(1)), (Alert("b"), at(2))])
            assert "hush" not in str(refused.value)
        assert receiver.calls == []
