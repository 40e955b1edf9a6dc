"""Topics of MQTT as sources and sinks, with a real broker."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import itertools
import re
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest
from paho.mqtt import publish
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import millwheel as mw
from deploy.local.child import free_ports
from deploy.local.mosquitto import MosquittoBroker
from millwheel.connectors import BadRecord, Sink, SinkWriter, mqtt
from millwheel.connectors.mqtt.brokers import MqttAccess, MqttLink
from millwheel.testing import TopologyHarness
from millwheel.testing.connectors import SinkContract
from tests import components
from tests.connectors.given import at, running
from tests.connectors.test_database import Sale, batch, place, with_writers
from tests.coordination.test_etcd import CERTIFICATES
from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT
from tests.patience import patience, until

_numbers = itertools.count()


class Measured(msgspec.Struct):
    number: int


class Plant:
    """A topic of a test, at the shared broker or at one of its own."""

    def __init__(self, broker: MosquittoBroker) -> None:
        self.broker = broker
        self.name = f"plant{next(_numbers)}"

    def send(self, *numbers: Any, auth: Any = None, **options: Any) -> None:
        messages = [{"topic": f"{self.name}/a", "payload": f'{{"number": {one}}}', "qos": 1} for one in numbers]
        publish.multiple(
            [{**one, **options} for one in messages],  # type: ignore[misc]
            hostname="127.0.0.1",
            port=self.broker.port,
            protocol=paho.MQTTv5,
            auth=auth,
        )

    def topology(self, bad: str | None = None, **options: Any) -> mw.Topology:
        given = {
            "topics": f"{self.name}/#",
            "kind": Measured,
            "server": self.broker.url,
            "client": self.name,
            **options,
        }
        idle = given.pop("idle_after", None)
        topology = mw.Topology("plant")
        topology.source("measured", Measured, mqtt.source(**given), bad=bad, idle_after=idle)
        return topology


@pytest.fixture
def plant() -> Plant:
    return Plant(components.mosquitto())


def numbers(harness: TopologyHarness) -> list[int]:
    return [one.number for one in harness.values("measured")]


def until_read(harness: TopologyHarness, count: int) -> None:
    """Read until so many messages have come, and twice more, so that they are acknowledged."""
    for _ in range(round(patience(200))):
        if len(harness.values("measured")) >= count:
            break
        harness.advance_clock(mw.seconds(1))
    harness.advance_clock(mw.seconds(1))
    harness.advance_clock(mw.seconds(1))


@pytest.mark.guarantee("G1")
def test_each_message_comes_once_and_in_order(plant: Plant) -> None:
    with running(plant.topology(window=20)) as harness:
        plant.send(*range(300))
        until_read(harness, 300)
        harness.crash()
        plant.send(*range(300, 310))
        until_read(harness, 310)
        assert numbers(harness) == list(range(310))
        assert harness.state("measured-reader", f"{plant.name}/#").position.count == 310


@pytest.mark.guarantee("G1")
def test_messages_of_the_time_between_two_readers_come(plant: Plant) -> None:
    """And those that were read without a commit come again, but not those that were committed."""
    source: Any = mqtt.source(f"{plant.name}/#", Measured, server=plant.broker.url, client=plant.name)

    async def do(position: Any, count: int) -> tuple[list[int], Any]:
        reader, got = await source.open_reader(f"{plant.name}/#", position), list[int]()
        end = time.monotonic() + patience(5)
        while len(got) < count and time.monotonic() < end:
            read = await reader.read()
            got += [value.number for value, _ in read.records]
        await reader.read()  # while the commit of the last one is in flight
        await reader.close()
        return got, read.position

    first = asyncio.run(_open_once(source, plant))
    plant.send(1, 2, 3)
    got, committed = asyncio.run(do(first, 3))
    assert got == [1, 2, 3]
    plant.send(4, 5)
    got, _ = asyncio.run(do(committed, 2))
    assert got == [4, 5]
    got, _ = asyncio.run(do(committed, 2))
    assert got == [4, 5]


async def _open_once(source: Any, plant: Plant) -> Any:
    reader = await source.open_reader(f"{plant.name}/#", None)
    position = (await reader.read()).position
    await reader.close()
    return position


def test_a_message_that_cannot_be_read_stops_its_split(plant: Plant) -> None:
    with running(plant.topology()) as harness:
        plant.send(1, '"x"', 3)
        with pytest.raises(Exception, match=r"topic plant\d+/a: .*`int`.*bad=\"NAME\""):
            until_read(harness, 1)
        harness.update(plant.topology(bad="unreadable"))
        until_read(harness, 2)
        assert numbers(harness) == [1, 3]
        (bad,) = harness.values("unreadable")
        assert isinstance(bad, BadRecord)
        assert bad.raw == b'{"number": "x"}'


def test_a_message_whose_time_fails_has_its_topic(plant: Plant) -> None:
    topology = mw.Topology("plant")
    source = mqtt.source(f"{plant.name}/#", Measured, server=plant.broker.url, client=plant.name)
    topology.source("measured", Measured, source, timestamp=lambda one: mw.Timestamp(one.number), bad="unreadable")
    with running(topology) as harness:
        plant.send(1)
        for _ in range(round(patience(200))):
            if harness.values("unreadable"):
                break
            harness.advance_clock(mw.seconds(1))
        assert [bad.place for bad in harness.values("unreadable")] == [f"a message of the topic {plant.name}/a"]


def test_a_message_has_its_topic_and_properties(plant: Plant) -> None:
    topology = mw.Topology("plant")
    read = mqtt.source(f"{plant.name}/+", mqtt.MqttMessage, server=plant.broker.url, client=plant.name)
    topology.source("measured", mqtt.MqttMessage, read)
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("unit", "C")]
    with running(topology) as harness:
        plant.send(7, properties=properties)
        until_read(harness, 1)
        payload = b'{"number": 7}'
        assert list(harness.values("measured")) == [mqtt.MqttMessage(f"{plant.name}/a", payload, [("unit", "C")])]


def test_retained_messages_are_not_read(plant: Plant) -> None:
    plant.send(1, retain=True)
    with running(plant.topology()) as harness:
        plant.send(2)
        until_read(harness, 1)
        assert numbers(harness) == [2]


@pytest.mark.guarantee("G13")
def test_messages_of_qos_0_that_find_no_room_are_counted(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millwheel.connectors.mqtt.topics.MAX_UNSURE", 5)
    source: Any = mqtt.source(f"{plant.name}/#", Measured, server=plant.broker.url, client=plant.name)

    async def do() -> tuple[int, int]:
        reader, got, lost = await source.open_reader(f"{plant.name}/#", None), 0, 0
        await asyncio.to_thread(lambda: plant.send(*range(50), qos=0))
        end = time.monotonic() + patience(20)
        while got + lost < 50 and time.monotonic() < end:
            read = await reader.read()
            got, lost = got + len(read.records), lost + read.lost
        await reader.close()
        return got, lost

    got, lost = asyncio.run(do())
    assert got + lost == 50
    assert (lost > 0) == ("were lost: 5 messages waited" in caplog.text)
    assert got >= 5


def test_messages_of_qos_0_that_nothing_reads_are_logged(plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
    source: Any = mqtt.source(f"{plant.name}/#", Measured, server=plant.broker.url, client=plant.name)

    async def do() -> tuple[int, int]:
        reader, got, waiting = await source.open_reader(f"{plant.name}/#", None), 0, 0
        reader.most_records = 1
        await asyncio.to_thread(lambda: plant.send(*range(50), qos=0))
        end = time.monotonic() + patience(20)
        while waiting < 2 and time.monotonic() < end:
            read = await reader.read()
            got, waiting = got + len(read.records), read.behind or 0
        await reader.close()
        return got, waiting

    got, waiting = asyncio.run(do())
    lost = int(re.findall(r"(\d+) messages of .* were lost: they waited for a read", caplog.text)[0])
    assert 2 <= waiting <= lost <= 50 - got


@pytest.mark.guarantee("G7")
def test_a_topic_without_more_is_idle(plant: Plant) -> None:
    with running(plant.topology(idle_after=mw.seconds(5))) as harness:
        plant.send(1)
        until_read(harness, 1)
        for _ in range(round(patience(200))):
            if harness.watermark("measured-reader") > at(1_004):
                break
            harness.advance_clock(mw.seconds(1))
        assert harness.watermark("measured-reader") > at(1_004)


@pytest.mark.guarantee("G7")
def test_a_broker_that_is_far_away_can_be_idle(tmp_path: Path) -> None:
    """Otherwise the watermark would wait for ever where each answer takes a tenth of a second."""
    with MosquittoBroker(tmp_path) as broker:
        source: Any = mqtt.source("plant", Measured, server=broker.url, client="plant")

        async def do() -> list[int | None]:
            reader, found = await source.open_reader("plant", None), []
            for pause in (0.2, patience(20)):
                broker.process.pause()
                reading = asyncio.ensure_future(reader.read())
                await asyncio.wait([reading], timeout=pause)
                broker.process.resume()
                found.append((await reading).behind)
            await reader.close()
            return found

        assert asyncio.run(do()) == [0, 1]


@pytest.mark.guarantee("G1")
def test_a_broker_that_comes_and_goes_loses_nothing(tmp_path: Path) -> None:
    plant = Plant(MosquittoBroker(tmp_path))
    with pytest.raises(mqtt.MqttError, match=r"broker at 127.0.0.1:\d+ cannot be reached"), running(plant.topology()):
        pass
    with plant.broker as broker, running(plant.topology()) as harness:
        plant.send(1, 2)
        until_read(harness, 2)
        broker.process.stop()
        with pytest.raises(mqtt.MqttError):
            harness.advance_clock(mw.seconds(60))
        broker.start()
        plant.send(3)
        until_read(harness, 3)
        assert numbers(harness) == [1, 2, 3]


@pytest.mark.guarantee("G1")
def test_a_session_that_was_lost_is_noticed(tmp_path: Path) -> None:
    with MosquittoBroker(tmp_path) as broker:
        plant = Plant(broker)
        with running(plant.topology()) as harness:
            plant.send(1)
            until_read(harness, 1)
            broker.process.kill()  # nothing was written down
            broker.start()
            for _ in range(2):
                with pytest.raises(mqtt.MqttError, match=r"(has lost the session|is not connected)"):
                    harness.advance_clock(mw.seconds(60))
            assert "has lost the session" in str(harness.failures[-1])
            harness.update(plant.topology(skip_lost=True))
            harness.advance_clock(mw.seconds(60))
            plant.send(2)
            until_read(harness, 2)
            assert numbers(harness) == [1, 2]


@pytest.mark.guarantee("G3")
def test_a_second_reader_ends_the_first(plant: Plant) -> None:
    source: Any = mqtt.source(f"{plant.name}/#", Measured, server=plant.broker.url, client=plant.name)

    async def do() -> None:
        former = await source.open_reader(f"{plant.name}/#", None)
        present = await source.open_reader(f"{plant.name}/#", mqtt.SessionPosition())
        await present.read()
        with pytest.raises(mqtt.MqttError, match=r"not connected.*client= of its own"):
            await former.read()
        await former.close()
        await present.close()

    asyncio.run(do())


def test_a_wrong_password_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"right@:/", b"twelve bytes", 101)
    words = ["plant:", "7", "101", *(base64.b64encode(one).decode() for one in (b"twelve bytes", salted))]
    (tmp_path / "users").write_text("$".join(words) + "\n")
    with MosquittoBroker(tmp_path, "allow_anonymous false", f"password_file {tmp_path}/users") as broker:
        plant = Plant(broker)
        url = f"mqtt://plant:${{PLANT_PASSWORD}}@127.0.0.1:{broker.port}"
        with (
            pytest.raises(mw.UsageError, match="environment variable PLANT_PASSWORD"),
            running(plant.topology(server=url)),
        ):
            pass
        topology = plant.topology(server=url)
        monkeypatch.setenv("PLANT_PASSWORD", "wrong")
        wrong = pytest.raises(mqtt.MqttError, match=r"Not authorized.*Check user and password")
        with wrong as failed, running(topology):
            pass
        assert "wrong" not in str(failed.value)
        monkeypatch.setenv("PLANT_PASSWORD", "right@:/")
        with running(topology) as harness:
            plant.send(1, auth={"username": "plant", "password": "right@:/"})
            until_read(harness, 1)
            assert numbers(harness) == [1]


# Sinks.


@contextmanager
def subscribed(plant: Plant) -> Iterator[list[Any]]:
    """What comes to the topic."""
    got: list[Any] = []
    ready = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_message = lambda client, data, message: got.append(message)
    client.on_subscribe = lambda client, data, packet, codes, properties: ready.set()
    client.connect("127.0.0.1", plant.broker.port)
    client.loop_start()
    client.subscribe(f"{plant.name}/#", 1)
    assert ready.wait(patience(20))
    try:
        yield got
    finally:
        client.disconnect()
        client.loop_stop()


def cents(messages: list[Any]) -> list[int]:
    return [msgspec.json.decode(one.payload)["cents"] for one in messages]


def wait_for(messages: list[Any], count: int) -> None:
    waiting = threading.Event()
    for _ in range(round(patience(400))):
        if len(messages) >= count:
            return
        waiting.wait(0.05)


@pytest.mark.guarantee("G1", "G15")
class TestTopic(SinkContract[Sale]):
    """At least once: a message may come twice, with the id that it had. Each record is there once for who drops those.

    A broker keeps no last batch, so a writer cannot refuse one. There is no away(): only a client that stays connected
    sees what is published, and test_a_sink_goes_on_when_its_broker_is_back has another way.
    """

    record_type = Sale
    knows_last_batch = False

    @pytest.fixture(autouse=True)
    def _plant(self, plant: Plant) -> Iterator[None]:
        self.plant = plant
        with subscribed(plant) as self.got:
            yield

    def make_sink(self) -> Sink[Sale]:
        return mqtt.sink(f"{self.plant.name}/a", server=self.plant.broker.url, client=self.plant.name)

    def stored(self) -> Sequence[int]:
        self.plant.send(0, topic=(end := f"{self.plant.name}/{len(self.got)}"))
        asyncio.run(until(lambda: self.got[-1:] and self.got[-1].topic == end))  # what was published before has come
        first: dict[str, Any] = {}
        for one in self.got:
            if one.topic == f"{self.plant.name}/a":
                first.setdefault(dict(one.properties.UserProperty)["millwheel-id"], one)
        return cents(list(first.values()))

    def value(self, number: int) -> Sale:
        return Sale("tea", number)

    def number_of(self, value: Sale) -> int:
        return value.cents


def test_a_sink_publishes_each_record(plant: Plant) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        await writer.write(batch(1, *range(100)))
        await writer.write(batch(2, 100))
        await writer.write(batch(2, 100))

    sink: Sink[Any] = mqtt.sink(lambda sale: f"{plant.name}/{sale.item}", server=plant.broker.url)
    with subscribed(plant) as got:
        with_writers(sink, place(), do=do)
        wait_for(got, 102)
    assert cents(got) == [*range(101), 100]
    ids = [dict(one.properties.UserProperty)["millwheel-id"] for one in got]
    assert (ids[0], ids[99], ids[100], ids[101]) == ("1-0", "1-99", "2-0", "2-0")
    assert {one.topic for one in got} == {f"{plant.name}/tea"}


def test_a_wrong_topic_publishes_nothing_of_its_batch(plant: Plant) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        with pytest.raises(mqtt.MqttError, match="a topic is a text of up to 65,535 bytes without wildcards"):
            await writer.write(batch(1, 1, 2))
        await writer.write(batch(1, 3))

    sink: Sink[Any] = mqtt.sink(lambda sale: f"{plant.name}/{'+' if sale.cents == 2 else 'a'}", server=plant.broker.url)
    with subscribed(plant) as got:
        with_writers(sink, place(), do=do)
        wait_for(got, 1)
    assert cents(got) == [3]


@pytest.mark.guarantee("G3")
def test_a_former_writer_publishes_no_more(plant: Plant) -> None:
    async def do(former: SinkWriter[Any], present: SinkWriter[Any]) -> None:
        await present.write(batch(2, 20))
        with pytest.raises(mqtt.MqttError, match=r"client= of its own"):
            await former.write(batch(1, 10))

    with subscribed(plant) as got:
        with_writers(mqtt.sink(f"{plant.name}/a", server=plant.broker.url), place(), place(), do=do)
        wait_for(got, 1)
    assert cents(got) == [20]


@pytest.mark.guarantee("G1")
def test_a_sink_goes_on_when_its_broker_is_back(tmp_path: Path) -> None:
    with MosquittoBroker(tmp_path) as broker:
        plant = Plant(broker)
        topology = mw.Topology("plant")
        sink: Sink[Any] = mqtt.sink(f"{plant.name}/a", server=broker.url, payload=lambda one: b"%d" % one, retain=True)
        topology.source("numbers", int).to("out", sink, batch_records=1)
        with running(topology) as harness:
            harness.send("numbers", 1, at(1))
            broker.process.kill()
            with pytest.raises(mqtt.MqttError):
                harness.send("numbers", 2, at(2))
            broker.start()
            harness.advance_clock(mw.seconds(60))
            with subscribed(plant) as got:
                wait_for(got, 1)
            assert [one.payload for one in got] == [b"2"]


def test_the_programs_of_the_page_work(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    page: Any = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # types of a program are looked up in its module
    for block in blocks_of(ROOT / "docs" / "mqtt.md"):
        if block.language == "python":
            code = block.code.replace("mqtt://localhost:1883", plant.broker.url)
            exec(compile(code, block.page, "exec"), vars(page))
    now, alarms = 1_767_268_800, Plant(plant.broker)
    alarms.name = "alarms"
    with running(page.measuring, now=mw.from_seconds(now + 5)) as harness, subscribed(alarms) as got:
        for number, degrees in enumerate((20.5, 95.0, 90.0)):
            payload = msgspec.json.encode({"room": "hall", "degrees": degrees, "at": now + number})
            plant.send(0, topic="plant/hall/temperature", payload=payload)
        for _ in range(round(patience(400))):
            if got:
                break
            harness.advance_clock(mw.seconds(5))
    assert [(one.topic, msgspec.json.decode(one.payload)["degrees"]) for one in got] == [("alarms/hall", 95.0)]


def test_a_closed_link_leaves_no_socket_to_the_collector(plant: Plant) -> None:
    """It may finalize a socket before its client, and the socket warns that it is still open."""
    link = MqttLink(MqttAccess(plant.broker.url), plant.name, on_message=lambda message: None)
    link.open()
    client = weakref.ref(link._client)  # noqa: SLF001  # whether it lives on
    gc.disable()
    try:
        link.close()
        del link
        assert client() is None
    finally:
        gc.enable()


def test_a_broker_with_tls_is_checked(tmp_path: Path) -> None:
    lines = f"listener TLS 127.0.0.1\ncertfile {CERTIFICATES}/one.pem\nkeyfile {CERTIFICATES}/one.key"
    (port,) = free_ports(1)
    with MosquittoBroker(tmp_path, lines.replace("TLS", str(port))) as broker:
        plant = Plant(broker)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the library leaves that socket to the collector
            refused = pytest.raises(mqtt.MqttError, match="CERTIFICATE_VERIFY_FAILED")
            with refused, running(plant.topology(server=f"mqtts://localhost:{port}")):
                pass
            del refused
            gc.collect()
        trusted = f"mqtts://localhost:{port}?ca_certs={CERTIFICATES}/one-ca.pem"
        with running(plant.topology(server=trusted)) as harness:
            plant.send(1)
            until_read(harness, 1)
            assert numbers(harness) == [1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topics": []}, "reads a topic filter"),
        ({"client": ""}, "needs a name for its sessions"),
        ({"window": 0}, "window= is 1 to"),
        ({"session_expiry": 5}, "session_expiry= is"),
        ({"server": "http://localhost"}, "needs a URL such as mqtt://"),
        ({"server": "mqtt://me:secret@localhost"}, "has no passwords"),
        ({"server": "mqtts://localhost?ca=x"}, "has no 'ca'"),
    ],
)
def test_what_is_no_source_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(mw.UsageError, match=why) as refused:
        mqtt.source(**{"topics": "a", "server": "mqtt://localhost", "client": "c", **options})
    assert "secret" not in str(refused.value)


def test_a_sink_has_no_wildcards() -> None:
    with pytest.raises(mw.UsageError, match="without wildcards"):
        mqtt.sink("plant/#", server="mqtt://localhost")
