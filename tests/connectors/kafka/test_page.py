"""The programs of docs/kafka.md run, with topics of a real broker."""

from __future__ import annotations

import sys
import types
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import millwheel as mw
from millwheel.connectors.kafka import KafkaRecord
from millwheel.testing import TopologyHarness
from tests import components
from tests.connectors.given import NOON
from tests.connectors.kafka.given import address, committed, new_topic, wait_for, written
from tests.connectors.kafka.messages import compiled
from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT


def test_the_programs_of_the_page_work(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, target, offers, high, proto_offers, low = (new_topic() for _ in range(6))
    own = {
        "127.0.0.1:9092": address(),
        "http://127.0.0.1:8081": components.schema_registry().url,
        'source("bids"': f'source("{topic}"',
        'source("offers"': f'source("{offers}"',
        'sink("big-bids"': f'sink("{target}"',
        'sink("high-offers"': f'sink("{high}"',
        'source("proto-offers"': f'source("{proto_offers}"',
        'sink("low-offers"': f'sink("{low}"',
    }
    blocks = blocks_of(ROOT / "docs" / "kafka.md")
    (file,) = (block.code for block in blocks if block.code.startswith("syntax"))
    of_file: Any = types.ModuleType("offers_pb2")  # as the compiler makes it of the page's file
    of_file.Offer = compiled({"offers.proto": file}, "shop.Offer")
    monkeypatch.setitem(sys.modules, "offers_pb2", of_file)
    page: Any = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # types of a program are looked up in its module
    for block in blocks:
        if block.language == "python":
            code = block.code
            for text, replacement in own.items():
                code = code.replace(text, replacement)
            exec(compile(code, block.page, "exec"), vars(page))
    with TopologyHarness(page.auctions) as harness:
        written(topic, [{"auction": "lamp", "cents": cents} for cents in (300, 700, 500)])
        wait_for(harness, lambda: len(committed(target)) == 2)
    found = [(message.key(), msgspec.json.decode(message.value() or b"")) for message in committed(target)]
    assert found == [(b"lamp", {"auction": "lamp", "cents": cents}) for cents in (700, 500)]
    record = KafkaRecord(StringValue(value="vase").SerializeToString(), None, [("a", b"1")], 0, 0, None)
    assert page.decode(record) == page.Bid("vase", 1)
    given = [page.Offer("lamp", cents, mw.Timestamp(NOON), "ann") for cents in (300, 700)]
    written(offers, [page.registry.avro(page.Offer, subject=f"{offers}-value").encode(offer) for offer in given])
    with TopologyHarness(page.offers) as harness:
        wait_for(harness, lambda: committed(high))
    (message,) = committed(high)
    assert page.bodies.decode(message.value()) == given[1]
    assert page.with_key(KafkaRecord(message.value(), page.key_of((3, None)), [], 0, 0, None)) == (3, given[1])
    written(proto_offers, [page.registry.protobuf(page.Offer, of_file.Offer, subject="x").encode(one) for one in given])
    with TopologyHarness(page.cheap) as harness:
        wait_for(harness, lambda: committed(low))
    (message,) = committed(low)
    messages = page.registry.protobuf(of_file.Offer)
    assert page.format.decode(message.value()) == given[0]
    assert messages.decode(message.value()).at.ToMicroseconds() == NOON
