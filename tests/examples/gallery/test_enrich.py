"""A local service is asked once for each address, and again after it failed."""

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


def test_an_address_is_asked_for_once(service: Service, harness: TopologyHarness) -> None:
    chance = Random(11)
    visits = [Visit(chance.choice(list(COUNTRIES)), f"/{number}") for number in range(40)]
    harness.send_all("visits", [(visit, at(0)) for visit in visits[:20]])
    harness.crash()  # the answers are in the state
    harness.send_all("visits", [(visit, at(0)) for visit in visits[20:]])
    found = harness.values("located")
    assert len(found) == len(visits)
    assert set(found) == {Located(visit, COUNTRIES[visit.address]) for visit in visits}
    assert service.asked == dict.fromkeys(COUNTRIES, 1)
    harness.advance_clock(mw.hours(1))
    harness.send("visits", visits[0], at(0))
    assert service.asked[visits[0].address] == 2


def test_a_service_that_fails_is_asked_again(service: Service, harness: TopologyHarness) -> None:
    service.failures = 3
    visit = Visit("10.0.0.1", "/")
    harness.send("visits", visit, at(0))
    assert harness.values("located") == []
    harness.advance_clock(mw.seconds(60))
    assert harness.values("located") == [Located(visit, "Norway")]
    assert service.asked["10.0.0.1"] == 4
    assert harness.values("dead-letters") == []
