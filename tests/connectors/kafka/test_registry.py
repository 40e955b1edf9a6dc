"""A schema registry that is asked, away, wrong, slow and closed to the caller; and topics whose schemas it has."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.connectors import BadRecord, SinkBatch, SinkShard, Source
from millwheel.connectors.kafka import KafkaError, KafkaRecord, RegistryFormat, SchemaRegistry, sink, source
from millwheel.connectors.kafka.formats import UnknownIds
from millwheel.connectors.kafka.records import reads_as
from millwheel.connectors.kafka.registry import RegisteredSchema, RegistryAccess, UnknownSchemaError
from millwheel.sdk.errors import UsageError
from tests.connectors.given import at
from tests.connectors.kafka.given import Reading, address, committed, new_topic, read_all, written
from tests.connectors.kafka.registries import PASSWORD, USER, Door, asked, direct, new_subject
from tests.patience import patience


class OldBid(msgspec.Struct, tag="Bid"):  # the tag is the name of the record
    item: str
    cents: int


class Bid(msgspec.Struct):
    """What became of an OldBid."""

    item: str
    cents: int
    by: str = "unknown"


class Other(msgspec.Struct, tag="Bid"):
    """It has a field without a default, so an older schema is not compatible."""

    item: str
    weight: float


LAMP, VASE = Bid("lamp", 300), Bid("vase", 900, "ann")


@pytest.fixture
def door() -> Iterator[Door]:
    with Door().open() as opened:
        yield opened


def test_a_schema_is_registered_and_read_once(door: Door, tmp_path: Path) -> None:
    registry, subject = door.registry(tmp_path), new_subject()
    writer = registry.avro(Bid, subject=subject)
    data = [writer.encode(one) for one in (LAMP, VASE)]
    assert {one[0] for one in data} == {0}
    registered = msgspec.json.decode(asked("GET", f"/subjects/{subject}/versions/latest")[1])
    assert int.from_bytes(data[0][1:5], "big") == registered["id"]
    assert msgspec.json.decode(registered["schema"])["name"] == "Bid"
    reader = registry.avro(Bid)
    assert [reader.decode(one) for one in data] == [LAMP, VASE]
    assert door.calls == [f"POST /subjects/{subject}/versions", f"GET /schemas/ids/{registered['id']}"]


def test_a_schema_may_change_midway(door: Door, tmp_path: Path) -> None:
    subject = new_subject()
    before = direct().avro(OldBid, subject=subject).encode(OldBid("lamp", 300))
    after = direct().avro(Bid, subject=subject).encode(VASE)
    assert before[:5] != after[:5]
    new, old = door.registry(tmp_path).avro(Bid), door.registry(tmp_path).avro(OldBid)
    assert [new.decode(one) for one in (before, after, before)] == [LAMP, VASE, LAMP]
    assert [old.decode(one) for one in (after, before)] == [OldBid("vase", 900), OldBid("lamp", 300)]


def test_few_schemas_are_kept(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.connectors.kafka.formats.KEPT_SCHEMAS", 2)
    reader = door.registry(tmp_path).avro(str)
    for number in (1, 2, 1, 3, 1, 2):
        door.answers = [(200, b'{"schema": "\\"string\\""}')]
        assert reader.decode(b"\0" + number.to_bytes(4, "big") + b"\2a") == "a"
    assert [call.rpartition("/")[2] for call in door.calls] == ["1", "2", "3", "2"]


def test_a_subject_has_the_name_that_is_asked_for() -> None:
    subject = new_subject()
    for asked_for, expected in (
        ("{topic}-value", f"{subject}-value"),
        ("{record}", "Bid"),
        ("{topic}-{record}/x", f"{subject}-Bid/x"),
    ):
        direct().avro(Bid, subject=asked_for).of_topic(subject).encode(LAMP)
        assert expected in msgspec.json.decode(asked("GET", "/subjects")[1])


def test_a_schema_that_is_not_registered_is_an_error() -> None:
    subject = new_subject()
    looks_up = direct().avro(Bid, subject=subject, register=False)
    with pytest.raises(
        KafkaError, match=f"subject '{subject}': the schema registry does not have the schema.*Register"
    ):
        looks_up.encode(LAMP)
    direct().avro(OldBid, subject=subject).encode(OldBid("lamp", 3))
    with pytest.raises(KafkaError, match="does not have the schema of the sink"):
        looks_up.encode(LAMP)
    registering = direct().avro(Bid, subject=subject).encode(LAMP)
    assert looks_up.encode(LAMP) == registering  # an error is not kept


def test_a_schema_that_is_not_compatible_is_an_error() -> None:
    subject = new_subject()
    direct().avro(OldBid, subject=subject).encode(OldBid("lamp", 3))
    assert asked("PUT", f"/config/{subject}", {"compatibility": "BACKWARD"})[0] == 200
    with pytest.raises(
        KafkaError, match=r"not compatible with the schema of the sink, so nothing is written.*defaults"
    ):
        direct().avro(Other, subject=subject).encode(Other("lamp", 0.5))
    direct().avro(Bid, subject=subject).encode(LAMP)


def test_an_id_that_is_not_there_is_a_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    bids, data = direct().avro(Bid), b"\0" + (999_999).to_bytes(4, "big") + b"x"
    with pytest.raises(KafkaError, match="no schema with the id 999999: it is asked again for 30 s"):
        bids.decode(data)
    monkeypatch.setattr("millwheel.connectors.kafka.formats.UNKNOWN_SECONDS", 0.0)
    with pytest.raises(UnknownSchemaError, match=r"no schema with the id 999999$"):
        bids.decode(data)
    for data in (b"", b"\0\0\0\0", b'{"item": "lamp"}', b"\1" + bytes(20)):
        with pytest.raises(ValueError, match="does not begin with a byte 0 and the id of a schema"):
            direct().avro(Bid).decode(data)


@pytest.mark.guarantee("G1")
def test_a_server_that_learns_late_makes_no_bad_record(door: Door, tmp_path: Path) -> None:
    bids, data = door.registry(tmp_path).avro(Bid), direct().avro(Bid, subject=new_subject()).encode(LAMP)
    door.answers = [(404, b'{"error_code": 40403, "message": "Schema not found"}')]
    with pytest.raises(KafkaError, match="its servers learn of a new schema one after the other"):
        bids.decode(data)
    assert bids.decode(data) == LAMP


def test_a_version_that_is_learnt_late_is_asked_for_again(door: Door) -> None:
    """Regression: the error said that the URL was that of another server."""
    door.answers = [(200, b'{"id": 7}'), (404, b'{"error_code": 40403, "message": "Schema not found"}')]
    with pytest.raises(KafkaError, match=r"subject 'bids': .* does not have the schema yet .*; it is asked again"):
        RegistryAccess(door.url).version_of("bids", RegisteredSchema("{}"), register=True)


def test_an_id_waits_from_its_first_look() -> None:
    unknown = UnknownIds()
    assert [unknown.wait(1, 100), unknown.wait(2, 110), unknown.wait(1, 129)] == [30, 30, 1]
    assert [unknown.wait(1, 130), unknown.wait(1, 500), unknown.wait(2, 131)] == [0, 0, 9]
    unknown.found(2)
    unknown.found(3)
    assert unknown.wait(2, 132) == 30
    assert unknown.wait(1, 3701) == 30


def test_few_unknown_ids_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.connectors.kafka.formats.KEPT_SCHEMAS", 2)
    unknown = UnknownIds()
    assert [unknown.wait(number, 100 + number) for number in (1, 2, 3, 3, 1)] == [30] * 5
    assert unknown.wait(3, 113) == 20


def test_a_wrong_password_is_an_error_without_it(door: Door, tmp_path: Path) -> None:
    wrong = door.registry(tmp_path, "wrong-secret").avro(Bid, subject=new_subject())
    for call in (lambda: wrong.encode(LAMP), lambda: wrong.decode(b"\0\0\0\0\1x")):
        with pytest.raises(KafkaError, match=r"answered 401: Unauthorized; correct basic\.auth\.user\.info") as found:
            call()
        assert "wrong-secret" not in f"{found.value!r} {found.value.__cause__!r} {wrong!r}"


def test_secrets_are_in_the_file_of_the_worker(tmp_path: Path, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.properties"
    path.write_text(f"url={door.url}/\nbasic.auth.user.info={USER}:${{REGISTRY_PASSWORD}}\n")
    registered = SchemaRegistry(settings=str(path)).avro(Bid, subject=new_subject())
    with pytest.raises(KafkaError, match="line 2: the worker has no environment variable REGISTRY_PASSWORD"):
        registered.encode(LAMP)
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    assert registered.encode(LAMP)[0] == 0
    spec = source("bids", decode=registered, brokers="kafka:9092")
    assert PASSWORD not in repr(spec)
    assert spec.identity() == source("bids", Bid, brokers="kafka:9092").identity()
    door.answers = [(401, b"")]
    path.write_text(f"url={door.url}\nbearer.auth.token=t0ken\n")  # a renewed file is read
    with pytest.raises(KafkaError, match="answered 401: no text"):
        registered.decode(b"\0\0\0\0\1x")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("basic.auth.user.info=secr\xe9t:secret\n", r"registry\.properties is no text in UTF-8, at byte 25"),
        ("url=http://a..b:1\n", "needs a URL such as"),
        (f"url=http://{'a' * 64}.b:1\n", "needs a URL such as"),
        ("basic.auth.user.info=a:b\n", "has no url"),
        ("url=http://u:secret@x:1\n", "takes no user or password in its URL"),
        ("url=ftp://x\n", "needs a URL such as"),
        ("url=http://x:1\nbasic.auth=secret\n", r"sets basic\.auth, which is not known of a schema registry"),
        ("url=http://x:1\nbasic.auth.user.info=secret\n", "has no colon"),
        ("url=http://x:1\nbearer.auth.token=secret\x07\n", "a character that no token has"),
        ("url=https://x:1\nssl.ca.location=/no/such.pem\n", r"cannot be used \(ssl\.ca\.location=/no/such\.pem\)"),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "registry.properties"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KafkaError, match=error) as found:
        SchemaRegistry(settings=str(path)).avro(Bid).decode(b"\0\0\0\0\1x")
    assert "secret" not in f"{found.value} {found.value.__cause__!r}"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(KafkaError, match=r"cannot read the file of settings: .*/no/such\.properties"):
        SchemaRegistry(settings="/no/such.properties").avro(Bid).decode(b"\0\0\0\0\1x")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, b"<html>"), "does not answer as a schema registry"),
        ((200, b'{"schema": "\xff"}'), "does not answer as a schema registry"),
        ((200, b'{"references":' + b"[" * 5_000), "does not answer as a schema registry"),
        ((500, b"[" * 5_000), r"answered 500: \[\[\[.*it is asked again"),
        ((500, b'{"error_code": 1e999}'), "answered 500: .*it is asked again"),
        ((404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'), "HTTP 404 Not Found; the URL is that of"),
        ((302, b""), "answered 302: no text; the URL is that of another server"),
        ((503, b"busy"), "answered 503: busy; it is asked again, and nothing is lost"),
        ((200, b" " * (5 << 20)), "more than 4,194,304 bytes"),
        (None, r"has not answered within 0\.5 s; it is asked again"),
    ],
)
def test_a_registry_that_fails_says_how(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, error: str
) -> None:
    reader, data = door.registry(tmp_path).avro(Bid), direct().avro(Bid, subject=new_subject()).encode(LAMP)
    door.answers = [answer]
    with monkeypatch.context() as patch:
        if answer is None:
            patch.setattr("millwheel.connectors.kafka.registry.ANSWER_SECONDS", 0.5)
        with pytest.raises(KafkaError, match=error):
            reader.decode(data)
    assert reader.decode(data) == LAMP


def test_an_id_that_no_record_can_have_is_an_error(door: Door, tmp_path: Path) -> None:
    bids = door.registry(tmp_path).avro(Bid, subject=new_subject())
    for number in (b"-1", b"4294967296"):
        door.answers = [(200, b'{"id": %s}' % number)]
        with pytest.raises(KafkaError, match="does not answer as a schema registry"):
            bids.encode(LAMP)
    assert bids.encode(LAMP)[0] == 0


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """The process may open so many files and connections more."""
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    first = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + 20, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(first))
        for one in (held.pop() for _ in range(count)):
            os.close(one)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in (first, *held):
            os.close(one)


@pytest.mark.guarantee("G1")
def test_a_worker_without_descriptors_makes_no_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bids = Door().registry(tmp_path).avro(Bid)
    with pytest.raises(KafkaError, match="cannot be reached"):  # it has loaded its libraries
        bids.decode(b"\0\0\0\0\1x")
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # asyncio cannot close an event loop that is half made
    for count in range(4):
        with free_descriptors(count), pytest.raises(KafkaError, match="Too many open files"):
            bids.decode(b"\0\0\0\0\1x")
        gc.collect()


def test_a_lookup_that_hangs_does_not_hold_up_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def lookup(*_: Any, **__: Any) -> Any:
        over.wait(patience(20))
        raise socket.gaierror(socket.EAI_AGAIN, "it has hung")

    monkeypatch.setattr("socket.getaddrinfo", lookup)
    monkeypatch.setattr("millwheel.connectors.kafka.registry.ANSWER_SECONDS", 0.2)
    try:
        with pytest.raises(KafkaError, match=r"has not answered within 0\.2 s"):
            SchemaRegistry("http://schemas.example:1").avro(Bid).decode(b"\0\0\0\0\1x")
        assert not over.is_set()
    finally:
        over.set()


def test_arguments_that_cannot_be_used_are_named() -> None:
    with pytest.raises(UsageError, match="needs url="):
        SchemaRegistry()
    with pytest.raises(UsageError, match="no user or password"):
        SchemaRegistry("https://ann:secret@schemas")
    for wrong in ("schemas:8081", "http://", "http://x:port", "http://x?token=secret"):
        with pytest.raises(UsageError, match="needs a URL such as"):
            SchemaRegistry(wrong)
    registry = SchemaRegistry("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="subject= is a text"):
        registry.avro(Bid, subject="")
    with pytest.raises(UsageError, match='give subject="TOPIC-key"'):
        registry.avro(Bid).encode(LAMP)
    with pytest.raises(UsageError, match="has no schema of Avro"):
        sink("bids", value=registry.avro(KafkaRecord[complex]), brokers="x:1")


async def test_an_event_loop_is_not_stopped() -> None:
    with pytest.raises(UsageError, match="over the network, and would stop everything else"):
        SchemaRegistry("http://127.0.0.1:1").avro(Bid).decode(b"\0\0\0\0\1x")


def test_without_the_library_avro_can_be_declared() -> None:
    program = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from millwheel.connectors import kafka\n"
        "registry = kafka.SchemaRegistry('http://127.0.0.1:1')\n"
        "kafka.sink('bids', value=registry.avro(int), brokers='x:1')\n"
        "kafka.source('bids', decode=registry.avro(int), brokers='x:1')\n"
        "try: registry.avro(int).decode(bytes(6))\n"
        "except kafka.KafkaError: raise\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UsageError Avro needs the library fastavro")
    assert "openmillwheel[avro]" in done.stdout


def test_json_has_its_schema_in_the_registry(door: Door, tmp_path: Path) -> None:
    subject = new_subject()
    data = direct().json(Bid, subject=subject).encode(LAMP)
    assert data[5:] == msgspec.json.encode(LAMP)
    registered = msgspec.json.decode(asked("GET", f"/subjects/{subject}/versions/latest")[1])
    assert registered["schemaType"] == "JSON"
    assert int.from_bytes(data[1:5], "big") == registered["id"]
    reader = door.registry(tmp_path).json(Bid)
    assert reader.decode(data) == LAMP
    assert door.calls == []  # the type says what is wrong
    with pytest.raises(ValueError, match="Expected `int`"):
        reader.decode(data[:5] + b'{"item": "lamp", "cents": "many"}')
    with pytest.raises(ValueError, match="of the type JSON, and not AVRO"):
        direct().avro(Bid).decode(data)
    neither: Any = list[int] | set[int]
    for call in (direct().json, direct().avro):
        with pytest.raises(UsageError, match="can be read as"):
            call(neither)


class Message:
    """A message of the client library, without a broker."""

    def __init__(self, value: bytes | None, key: bytes | None = None) -> None:
        self.value: Callable[[], bytes | None] = lambda: value
        self.key: Callable[[], bytes | None] = lambda: key
        self.headers: Callable[[], None] = lambda: None
        self.partition = self.offset = lambda: 0
        self.timestamp = lambda: (0, 0)


def test_a_whole_record_has_its_value_decoded() -> None:
    bids = direct().avro(Bid, subject=new_subject())
    parse = reads_as(KafkaRecord[Bid], "json", bids)
    given: Any = Message(bids.encode(LAMP), b"lamp")
    assert parse(given) == KafkaRecord(LAMP, b"lamp", [], 0, 0, None)
    tombstone: Any = Message(None)
    assert parse(tombstone).value is None
    with pytest.raises(ValueError, match="tombstone"):
        reads_as(bytes, "json", bids)(tombstone)


def of(topic: str, format: RegistryFormat[Bid]) -> Source[Bid, int]:
    return source(topic, decode=format, brokers=address())


@pytest.mark.guarantee("G1")
async def test_a_registry_that_is_away_loses_nothing(tmp_path: Path) -> None:
    """It is away at the start, and comes; it goes, and a schema comes that is not known; then it comes back."""
    topic, subject, door = new_topic(), new_subject(), Door()

    def encoded(kind: Any, *bids: Any) -> list[bytes]:
        return [direct().avro(kind, subject=subject).encode(one) for one in bids]

    before = await asyncio.to_thread(encoded, OldBid, OldBid("lamp", 1), OldBid("lamp", 2))
    after = await asyncio.to_thread(encoded, Bid, Bid("lamp", 4, "ann"), Bid("lamp", 5, "ann"))
    written(topic, [before[0], b"no Avro", before[1]])
    bids = of(topic, door.registry(tmp_path).avro(Bid))
    with pytest.raises(KafkaError, match=r"cannot be reached \(.*; it is asked again"):
        await read_all(bids, 3)
    with door.open():
        reading = await read_all(bids, 3)
    one, bad, two = reading.records
    assert [one, two] == [Bid("lamp", 1), Bid("lamp", 2)]
    assert isinstance(bad, BadRecord)
    assert (bad.place, bad.raw) == ("offset 1", b"no Avro")
    assert reading.last is not None
    written(topic, [before[0], after[0], before[1], after[1]])
    with pytest.raises(KafkaError, match="cannot be reached"):
        await read_all(bids, 4, reading.last.position)
    with door.open():
        found = (await read_all(bids, 4, reading.last.position)).records
    assert [(bid.cents, bid.by) for bid in found] == [(1, "unknown"), (4, "ann"), (2, "unknown"), (5, "ann")]


@pytest.mark.guarantee("G1")
async def test_a_sink_without_its_registry_writes_later(tmp_path: Path) -> None:
    topic, door = new_topic(), Door()
    registry = door.registry(tmp_path)
    keys = registry.avro(str, subject=f"{topic}-key")
    target = sink(topic, key=lambda bid: keys.encode(bid.item), value=registry.avro(Bid), brokers=address())
    place, batch = SinkShard(f"shop/{topic}", 0, 1, run=5), SinkBatch(1, [(LAMP, at(1)), (VASE, at(2))], "1", "")
    for is_away in (True, False, False):
        writer = await target.open_writer(place)
        try:
            if is_away:
                with pytest.raises(KafkaError, match="cannot be reached"):
                    await writer.write(batch)
            else:
                with door.open():
                    await writer.write(batch)
        finally:
            await writer.close()

    def found() -> list[tuple[str, Bid]]:
        names, bids = direct().avro(str), direct().avro(Bid)
        messages = committed(topic)
        return [(names.decode(one.key() or b""), bids.decode(one.value() or b"")) for one in messages]

    assert await asyncio.to_thread(found) == [("lamp", LAMP), ("vase", VASE)]
    with door.open():
        partial = of(topic, registry.avro(Bid))
        reader = Reading(await partial.open_reader("0", None))
        await reader.until_end(2)
        await reader.reader.close()
    assert reader.records == [LAMP, VASE]
