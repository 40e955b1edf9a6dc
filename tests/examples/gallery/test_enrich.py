"""A local service is asked for each visit, and again after it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Thread

import pytest

import millwheel as mw
from examples.gallery.enrich import Located, Visit, enrich
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import at

COUNTRIES = {"10.0.0.1": "Norway", "10.0.0.2": "Chile", "10.0.0.3": "Côte d'Ivoire"}


class Service(ThreadingHTTPServer):
    """Answers on loopback, and fails as often as ``failures`` says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = Counter[str]()
        self.failures = 0


class Answer(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        address = self.path[1:]
        self.server.asked[address] += 1
        failing = self.server.failures > 0
        self.server.failures -= failing
        self.send_response(503 if failing else 200)
        self.end_headers()
        self.wfile.write(COUNTRIES[address].encode())

    def log_message(self, *_: object) -> None:
        """Requests are no news."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with Service() as service:
        thread = Thread(target=service.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("COUNTRIES", f"http://127.0.0.1:{service.server_port}")
        yield service
        service.shutdown()
        thread.join()


@pytest.fixture
def harness() -> Iterator[TopologyHarness]:
    harness = TopologyHarness(enrich, split_at=["10.0.0.2"])
    yield harness
    harness.close()


def test_each_visit_gets_its_country(service: Service, harness: TopologyHarness) -> None:
    chance = Random(11)
    visits = [Visit(chance.choice(list(COUNTRIES)), f"/{number}") for number in range(40)]
    harness.send_all("visits", [(visit, at(0)) for visit in visits[:20]])
    harness.crash()
    harness.send_all("visits", [(visit, at(0)) for visit in visits[20:]])
    found = harness.values("located")
    for address, country in COUNTRIES.items():
        of_address = [visit for visit in visits if visit.address == address]
        assert [one for one in found if one.visit.address == address] == [Located(one, country) for one in of_address]
    assert len(found) == len(visits) == service.asked.total()


def test_a_service_that_fails_is_asked_again(service: Service, harness: TopologyHarness) -> None:
    service.failures = 3
    visit = Visit("10.0.0.1", "/")
    harness.send("visits", visit, at(0))
    assert harness.values("located") == []
    harness.advance_clock(mw.seconds(60))
    assert harness.values("located") == [Located(visit, "Norway")]
    assert service.asked["10.0.0.1"] == 4
    assert harness.values("dead-letters") == []


def test_a_service_that_always_fails_costs_one_visit(service: Service, harness: TopologyHarness) -> None:
    service.failures = 10
    for page in ("/first", "/second"):
        harness.send("visits", Visit("10.0.0.1", page), at(0))
    harness.advance_clock(mw.minutes(10))
    assert [one.visit.page for one in harness.values("located")] == ["/second"]
    (letter,) = harness.values("dead-letters")
    assert letter.attempts == 10
