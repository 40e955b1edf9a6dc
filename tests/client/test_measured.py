"""What an injector and a subscription count for metrics, without a server."""

from __future__ import annotations

import doctest
import gc
import subprocess
import sys
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from millwheel.client import metrics
from millwheel.client.injector.measures import InjectorMeasures
from millwheel.client.injector.messages import (
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    EndDeclared,
    IdleDeclared,
    Tick,
    WatermarkDeclared,
)
from millwheel.client.injector.room_waits import RoomCause, RoomWaits
from millwheel.client.injector.table_forms import TableCounts
from millwheel.client.measured import ClientLabels, MeasuredClients, Readings
from millwheel.client.subscription.measures import SubscriptionMeasures
from tests.injectors.test_core import ACKED, FULL, NOT_OWNER, add, one, opened, routing, sends, step
from tests.patience import patience


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_waits_of_several_calls_count_once() -> None:
    clock = Clock()
    waits = RoomWaits(clock)
    with waits.waiting(RoomCause.WINDOW):
        clock.now = 2.0
        with waits.waiting(RoomCause.WINDOW), waits.waiting(RoomCause.SKEW):
            clock.now = 5.0
            assert waits.seconds() == {RoomCause.WINDOW: 5.0, RoomCause.SKEW: 3.0}, "waits that go on count, too"
        clock.now = 6.0
    clock.now = 9.0
    assert waits.seconds() == {RoomCause.WINDOW: 6.0, RoomCause.SKEW: 3.0}
    with suppress(RuntimeError), waits.waiting(RoomCause.SKEW):
        clock.now = 10.0
        raise RuntimeError
    assert waits.seconds() == {RoomCause.WINDOW: 6.0, RoomCause.SKEW: 4.0}


def test_an_injector_counts_what_its_core_does() -> None:
    core = opened(of=routing(one(), one(name="d")), watermark=60)
    measures = InjectorMeasures(core, RoomWaits(), TableCounts(), publishes=True)
    first, second = sends(add(core, [1, 2], at=50))
    assert measures.labels == ("s", "p")
    assert measures.gauges()["unacked_records", ""] == 4
    assert measures.gauges()["unacked_bytes", ""] == 8
    step(core, DeliveryAnswered((first.token,), FULL, (1,)))
    step(core, DeliveryAnswered((first.token,), ACKED))
    step(core, DeliveryAnswered((second.token,), NOT_OWNER))
    again = sends(step(core, Tick(), 1_000))
    assert sorted(len(send.keys) for send in again) == [1, 2]
    step(core, ConnectionLost("a"))
    again = sends(step(core, ConnectionOpened("a"), 2_000))
    assert sorted(len(send.keys) for send in again) == [1, 2], "a lost connection sends them a third time"
    assert measures.counts() == {
        ("sent_records", ""): 2,
        ("late_records", ""): 2,
        ("acks", ""): 1,
        ("resent_records", ""): 6,
        ("table_records", "columns"): 0,
        ("table_records", "rows"): 0,
        ("refused_deliveries", "full"): 1,
        ("refused_deliveries", "not_owner"): 1,
        ("blocked_seconds", "window"): 0.0,
        ("blocked_seconds", "skew"): 0.0,
    }
    assert measures.gauges()["unacked_records", ""] == 3


def test_the_data_lag_is_that_of_a_watermark_that_should_rise() -> None:
    core = opened()
    measures = InjectorMeasures(core, RoomWaits(), TableCounts(), publishes=True, now=lambda: 9_000_000)
    assert ("watermark_timestamp_seconds", "") not in measures.gauges(), "nothing is declared"
    step(core, WatermarkDeclared(2_000_000))
    assert measures.gauges()["watermark_timestamp_seconds", ""] == 2.0
    assert measures.gauges()["data_lag_seconds", ""] == 7.0
    task = InjectorMeasures(core, RoomWaits(), TableCounts(), publishes=False)
    assert ("data_lag_seconds", "") not in task.gauges(), "another process publishes"
    step(core, IdleDeclared())
    assert measures.gauges()["watermark_timestamp_seconds", ""] == 2.0
    assert ("data_lag_seconds", "") not in measures.gauges(), "an idle process holds nothing"
    step(core, EndDeclared())
    assert ("watermark_timestamp_seconds", "") not in measures.gauges(), "it has ended"


class Reader:
    """A subscription at some offset."""

    watermark, received, missed, end = 2_000_000, 0, 0, 110
    acked, position = 100, 100


def test_a_subscription_shows_its_lag_and_its_acks() -> None:
    reader = Reader()
    cursor = SubscriptionMeasures(reader, ("s", "c"), now=lambda: 5_000_000)
    tail = SubscriptionMeasures(reader, ("s", ""), now=lambda: 5_000_000)
    assert cursor.counts()["acked_records", ""] == 0, "the ACKs before it was opened are not its own"
    reader.received, reader.position, reader.acked = 7, 107, 105
    assert cursor.counts() == {("received_records", ""): 7, ("missed_records", ""): 0, ("acked_records", ""): 5}
    assert tail.counts() == {("received_records", ""): 7, ("missed_records", ""): 0}
    watermark = {("watermark_timestamp_seconds", ""): 2.0, ("data_lag_seconds", ""): 3.0}
    assert cursor.gauges() == {("lag_records", ""): 3, ("unacked_records", ""): 2, **watermark}
    assert tail.gauges() == {("lag_records", ""): 3, **watermark}


class Client:
    """An open client with one count."""

    def __init__(self, name: str, count: int) -> None:
        self.labels: ClientLabels = "s", name
        self.count = count

    def counts(self) -> Readings:
        return {("sent_records", ""): self.count}

    def gauges(self) -> Readings:
        return {("unacked_records", ""): self.count, ("data_lag_seconds", ""): self.count}


def test_counts_never_fall_when_clients_close() -> None:
    clients = MeasuredClients()
    clients.kept = True
    one, other = Client("p", 2), Client("p", 3)
    clients.enter(one)
    clients.enter(other)
    assert clients.look()[1] == {("s", "p"): {("sent_records", ""): 5}}
    clients.leave(one)
    clients.leave(one)
    gauges, counts = clients.look()
    assert counts == {("s", "p"): {("sent_records", ""): 5}}
    assert gauges == [(("s", "p"), other.gauges())], "a closed client has no gauges"


def test_without_metrics_nothing_is_kept_of_closed_clients() -> None:
    clients = MeasuredClients()
    closed, lost = Client("p", 2), Client("q", 3)
    clients.enter(closed)
    clients.leave(closed)
    clients.enter(lost)
    del lost
    gc.collect()
    assert clients.look() == ([], {})


def test_clients_with_the_same_labels_are_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = MeasuredClients()
    monkeypatch.setattr(metrics, "INJECTORS", clients)
    here = [Client("p", 2), Client("p", 3), Client("q", 4)]
    for client in here:
        clients.enter(client)
    registry = CollectorRegistry()
    metrics.register_metrics(registry)
    p, q = {"stream": "s", "process": "p"}, {"stream": "s", "process": "q"}
    assert registry.get_sample_value("millwheel_injector_sent_records_total", p) == 5
    assert registry.get_sample_value("millwheel_injector_unacked_records", p) == 5
    assert registry.get_sample_value("millwheel_injector_data_lag_seconds", p) == 3, "the larger one"
    assert registry.get_sample_value("millwheel_injector_sent_records_total", q) == 4


def test_a_registry_takes_the_metrics_once() -> None:
    registry = CollectorRegistry()
    collector = metrics.register_metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register_metrics(registry)
    registry.unregister(collector)
    metrics.register_metrics(registry)


def test_the_example_of_the_metrics_runs() -> None:
    outcome = doctest.testmod(metrics)
    assert outcome.attempted
    assert not outcome.failed


_FORK = """
import os
from millwheel.client.measured import INJECTORS
from tests.client.test_measured import Client
here = Client("p", 2)
INJECTORS.enter(here)
child = os.fork()
if not child:
    os._exit(INJECTORS.look() != ([], {}))
assert os.waitpid(child, 0)[1] == 0
assert len(INJECTORS.look()[0]) == 1
"""


def test_a_forked_process_does_not_count_for_its_parent() -> None:
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=patience(60))


def test_an_injector_alone_does_not_import_prometheus() -> None:
    code = (
        "import sys; from millwheel.client import injector, subscription; assert 'prometheus_client' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(60))
