"""Samples of what is stored beside journals: heads, rows, states, keys, checkpoints and names."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

import millwheel as mw
from millwheel.injectors.checkpoints import FileStart, load_checkpoint, save_checkpoint
from millwheel.model import catalog_keys
from millwheel.model.envelope import FORMAT_VERSION, pack_header, unwrap, wrap
from millwheel.model.incarnation import IncarnationId
from millwheel.model.page_keys import is_page_key, page_key, row_owner
from millwheel.sdk.envelopes import envelope, opened
from millwheel.sdk.growing.codec import any_state_codec
from millwheel.sdk.growing.nodes import Node, decode_node
from millwheel.sdk.keys import encode_key, join_key, split_key
from millwheel.store import layout
from millwheel.store.cassandra.schema import MIGRATIONS
from millwheel.store.contract import JournalHead, PartId, StateRow
from millwheel.store.directory import DatabaseDirectory
from millwheel.worker.dedup import BatchIds, OpaqueIds, PositionIds
from millwheel.worker.interval.commits.production_ids import deterministic_id

from .forms import StoredForm

_WHERE: Final = "the sample"
_ID: Final = IncarnationId("count.7")
_DEFLATED: Final = bytes.fromhex(
    "02a901971c881300007801edd03101000000c2a0f54f6d0a3f884061c0800103060c183060c0800103060c183060c0c07b6013880001"
)
_PARTS: Final = (PartId("meta", 7, 9), PartId("dedup/0", 7, 9))
_HEAD: Final = JournalHead(7, 12, 9, _PARTS)


class Sampled(mw.GrowingState):
    """A growing state with a plain field and one collection of each kind."""

    cents: int = 0
    names: mw.MapState[str, int]
    lately: mw.ListState[str]
    seen: mw.SetState[tuple[int, str]]
    times: mw.OrderedState[str]
    counts: mw.CounterState[str]
    carts: mw.ExpiringMapState[str, int]


def _sampled() -> Sampled:
    made = Sampled()
    made.cents = 3
    made.names["ann"] = 4
    made.lately.append("x")
    made.seen.add((-1, "y"))
    made.times.add(mw.Timestamp(5_000_000), "z")
    made.counts.add("ann", 6)
    made.carts.put("ann", 7, mw.Timestamp(8_000_000))
    return made


_SAMPLED: Final = any_state_codec(Sampled, "computation 'sampled'")


def _sampled_facts(state: Sampled) -> Any:
    carts = [(name, state.carts[name], state.carts.end_of(name)) for name in state.carts]
    plain = state.cents, dict(state.names.items()), list(state.lately), list(state.seen)
    return *plain, list(state.times), dict(state.counts.items()), carts


def _row(row: StateRow) -> bytes:
    payload = layout.commit_bytes(row.commit) + row.blob
    return pack_header(FORMAT_VERSION, crc32(payload)) + payload


def _names(_: Any) -> bytes:
    """The names under which values are stored. Each is made by the function that the product calls."""
    made = [
        layout.head_key("j"),
        layout.parts_key("j"),
        layout.entry_key("j", 258),
        layout.part_key("j", _PARTS[1]),
        layout.cleared_key("j", 258, layout.state_prefix(_ID) + b"cat"),
        layout.state_prefix(_ID) + b"cat",
        *(
            name.encode()
            for name in (
                catalog_keys.topology_key("a/b c"),
                catalog_keys.chunk_key(_ID, 3),
                catalog_keys.log_key("words/spoken"),
                catalog_keys.worker_key("w/1"),
                catalog_keys.departure_key("w/1"),
                catalog_keys.master_key("127.0.0.1:7433"),
                catalog_keys.retired_key("count.7.j1"),
                catalog_keys.authority_key(2),
                catalog_keys.shard_leadership_key(2),
                catalog_keys.candidate_key("c"),
                catalog_keys.injector_key("words/spoken", "p"),
                catalog_keys.batch_key("query"),
                catalog_keys.SEQUENCER,
                catalog_keys.CLUSTER_SETTINGS,
                catalog_keys.LEADERSHIP,
            )
        ),
    ]
    return msgspec.msgpack.encode(made)


def _names_back(blob: bytes) -> Any:
    return msgspec.msgpack.decode(blob)


_CAUSES: Final = (
    17,
    (PositionIds("count.7.j1", 0, [5, 6], []), 1),
    (OpaqueIds([b"a" * 16]), 0),
    (BatchIds("query", 3, [b"c" * 16]), 0),
)


def _production_ids(_: Any) -> bytes:
    return b"".join(deterministic_id(_ID, b"cat", cause, "words/spoken", 2) for cause in _CAUSES)


def _checkpoint(starts: dict[str, FileStart]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "c", starts)
        return (Path(folder) / "c").read_bytes()


def _read_checkpoint(blob: bytes) -> dict[str, FileStart]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "c").write_bytes(blob)
        return load_checkpoint(Path(folder) / "c")


def _marker(_: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        directory = DatabaseDirectory(Path(folder) / "db")
        directory.release()
        return (Path(folder) / "db" / "MILLWHEEL.json").read_bytes()


FORMS: Final = (
    StoredForm("store/marker of a directory", msgspec.json.decode(_marker(None)), _marker, msgspec.json.decode),
    StoredForm("envelope", b"payload", wrap, lambda blob: unwrap(blob, _WHERE)),
    # Builds of zlib write other bytes, so those that were first written are read, and none are compared.
    StoredForm("envelope/deflated", bytes(5_000), lambda _: _DEFLATED, lambda blob: unwrap(blob, _WHERE)),
    StoredForm(
        "store/head", _HEAD, layout.encode_head, lambda blob: layout.decode_head(blob, _PARTS, _WHERE)
    ),
    StoredForm("store/part list", _PARTS, layout.encode_parts, lambda blob: layout.decode_parts(blob, _WHERE)),
    StoredForm("store/state row", StateRow(b"cat", 12, b"\x05"), _row,
               lambda blob: layout.decode_row(_ID, b"cat", blob)),
    StoredForm("store/names", _names_back(_names(None)), _names, _names_back),
    StoredForm("store/cassandra tables", "\n".join(one for step in MIGRATIONS for one in step), str.encode,
               bytes.decode),
    StoredForm("state/head of a growing one", _sampled_facts(_sampled()), lambda _: _SAMPLED.encode(_sampled()),
               lambda blob: _sampled_facts(_SAMPLED.decode(blob))),
    StoredForm("state/page of a growing one", ([b"a", b"b"], [b"1", 34]), lambda one: Node(*one).encode(),
               lambda blob: ((node := decode_node(blob, _WHERE)).keys, node.values)),
    StoredForm("state/key of a page", (b"cat", True), lambda _: page_key(b"cat", 258),
               lambda key: (row_owner(key), is_page_key(key))),
    StoredForm("state/envelope with a version", (300, b"x"), lambda one: envelope(one[0]) + one[1],
               lambda blob: opened(blob, _WHERE)),
    StoredForm("keys/of two fields", ("a|b\\", "7"), lambda parts: encode_key(join_key(*parts)),
               lambda key: split_key(key.decode())),
    StoredForm("ids/of weak productions", _production_ids(None), _production_ids, bytes),
    StoredForm("injectors/checkpoint of files", {"logs/a": FileStart(120, 1_000_000, "ab12")}, _checkpoint,
               _read_checkpoint),
)  # fmt: skip
