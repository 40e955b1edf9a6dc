"""Samples of what journals have: entries, base parts and ids (docs/decisions/0018-corrupt-values.md)."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from millwheel import agg
from millwheel.agg.aggregator import fold_of
from millwheel.agg.several import combined
from millwheel.authority import journal as authority
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.columns import RecordColumns
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Dedup, decode_delta
from millwheel.worker.dedup.results import IdDelta
from millwheel.worker.interval import entry as interval
from millwheel.worker.interval.column_run import ColumnRun
from millwheel.worker.interval.commits.divided import divide, joined
from millwheel.worker.interval.panes.changes import PaneChange, apply_changes, seal_changes
from millwheel.worker.interval.panes.plain import encoded_panes
from millwheel.worker.interval.panes.table import PaneTable
from millwheel.worker.interval.spilled_timers import SpilledPart
from millwheel.worker.journal_base import JournalBase
from millwheel.worker.log import entry as log
from millwheel.worker.takeover import restored_ids

from .forms import StoredForm

_WHERE: Final = "the sample"
_CONSUMER: Final = IncarnationId("count.7")
_TIMER: Final = (b"cat", True, "tick", 1_000_000, 900_000, 800_000, 17)
_OTHER_TIMER: Final = (b"dog", False, "", -5, None, -6, 18)
_PRODUCTION: Final = (19, b"cat", "words/spoken", b"\x93\x01\x02\x03", 700_000, ((_CONSUMER, b"c"),), b"i" * 16)
_DELTA: Final = IdDelta(
    positions=[("count.7.j1", range(4, 9)), ("injector/s/p", [1, 5, 6])],
    opaque=[("count.7", 600_000, [b"a" * 16, b"b" * 16])],
    batches=[("query", 3, [b"c" * 16])],
    admitted=[("count.7.j1", ""), ("injector/s/p/part", "injector/s/p")],
    marks=[("count.7.j1", 4, [2, 3])],
    retired=["count.6.j1"],
    sequencers=[("count.7", (b"a", b"m"), 21), ("count.7", (b"m", None), 22), ("", "injector/s/p", 23)],
    horizons=[("count.7", 650_000, 550_000)],
)

_RANGED: Final = dataclasses.replace(
    _DELTA, ranges=[("injector/s/p", [range(20, 30)]), ("injector/s/p/part", [range(1, 5), range(7, 8)])]
)

_DELTA_ROWS: Final[list[Any]] = msgspec.msgpack.decode(msgspec.msgpack.encode(_DELTA.to_wire()))

_ENTRY: Final = interval.IntervalEntry(
    interval.FORMAT,
    1_100_000,
    1_200_000,
    [(b"cat", b"\x05"), (b"dog", b"")],
    [(b"cat", 1_050_000), (b"dog", None)],
    [_TIMER, _OTHER_TIMER],
    [(b"owl", False, "t")],
    [_PRODUCTION],
    _DELTA_ROWS,
    [(16, "count.7")],
    (1, 2, 3, 4, 5, 6),
    [("count.7.j0", 11, "count.7")],
)
_PANES: Final = PaneChange(
    1_000_000, 2_000_000, b"\xa5count", b"\1\0\0\0\2\0\0\0", [b"dog"], [("<i8", b"\3" * 16)], b"\0\0\0\0"
)
_RUN: Final = interval.ProductionRun(
    16, "words/counts", ((_CONSUMER, b""),), [b"cat", b"dog", b"owl"], [b"\x03", b"\x04", b""], [(2, 700_000), (1, 8)]
)
_READ_RUN: Final = interval.ProductionRun(
    19,
    "shop/bids",
    ((_CONSUMER, [b"ale", b"tea", b"ale"]), (IncarnationId("log.4"), b"")),
    [(2, b"bids/0"), (1, b"bids/1")],
    [b"\x05", b"\x06", b"\x07"],
    [700_000, 600_000, -5],
)
_READ_TABLE: Final = ColumnRun(
    19,
    "shop/bids",
    ((_CONSUMER, "item"), (IncarnationId("log.4"), "")),
    b"bids/0",
    RecordColumns(pa.RecordBatch.from_pydict({"item": ["ale", "tea"], "cents": [5, 6]}), array("q", [700_000, -5]))
    .to_wire()
    .SerializeToString(),
)
_ONE_KEY: Final = replace(_READ_TABLE, targets=((_CONSUMER, "item"), (IncarnationId("table.5"), (b"0",))))
_WITH_RUNS: Final = replace(_ENTRY, format=interval.RUNS_FORMAT, panes=[_PANES], runs=[_RUN])


class _Bid(msgspec.Struct):
    size: int
    price: float


_BIDS: Final = [_Bid(3, 0.5), _Bid(-4, 2.0)]
_AGGREGATES: Final[dict[str, Any]] = {
    "count": agg.count(),
    "sum_int": agg.sum("size"),
    "sum_float": agg.sum("price"),
    "mean_int": agg.mean("size"),
    "mean_float": agg.mean("price"),
    "min_int": agg.min("size"),
    "max_float": agg.max("price"),
}
_PANE: Final = {
    "count": 2,
    "sum_int": -1,
    "sum_float": 2.5,
    "mean_int": [2, -1],
    "mean_float": [2, 2.5],
    "min_int": -4,
    "max_float": 2.0,
}


def _write_pane(_: Any) -> bytes:
    """A change with the pane of two bids, as an entry has it. Its form has those of all folds."""
    fold = fold_of(combined(_AGGREGATES).bind(_Bid))
    assert fold is not None
    table = PaneTable(fold)
    window = table.changing((0, 10, table.form), fold.kinds)
    window.added.append((window.rows_of([b"cat"] * len(_BIDS)), fold.read(_BIDS)))
    (change,) = seal_changes(table)
    return interval.encode_part(change)


def _read_pane(blob: bytes) -> Any:
    """The pane in plain types, as it moves to the state of its key."""
    table = PaneTable()
    apply_changes(table, [interval.decode_part(blob, PaneChange, _WHERE)], _WHERE)
    (window,) = table.windows.values()
    return msgspec.msgpack.decode(
        encoded_panes(window.form, {(0, 10): window.columns}), type=dict[tuple[int, int], Any]
    )


_META: Final = interval.BaseMeta(
    interval.FORMAT, 1_100_000, 1_200_000, 1_050_000, (1, 2, 3, 4, 5, 6), [(b"a", b"m", 40), (b"m", None, 50)]
)
_SPILLED: Final = SpilledPart.from_rows(3, 7, 9, [_TIMER], 900_000)


def _part(name: str, value: Any, type_: Any) -> StoredForm:
    return StoredForm(
        f"interval/part/{name}",
        value,
        interval.encode_part,
        lambda blob: interval.decode_part(blob, type_, _WHERE),
    )


def _log_form(name: str, value: Any) -> StoredForm:
    return StoredForm(f"log/{name}", value, log.encode, lambda blob: log.decode(blob, type(value), _WHERE))


def _index_facts(part: SpilledPart) -> Any:
    return part.rows, part.domain, part.first, part.hold, list(part.prints)


def _read_index(blob: bytes) -> Any:
    return _index_facts(SpilledPart.decode(PartId("far/index/3", 7, 9), blob, _WHERE))


def _write_divided(blob: bytes) -> bytes:
    entry, parts = divide(blob, 7, 9, 4)
    return msgspec.msgpack.encode((entry, [(part.name, part.sequencer, part.commit, parts[part]) for part in parts]))


def _read_divided(stored: bytes) -> bytes:
    entry, parts = msgspec.msgpack.decode(stored)
    return joined(entry, 9, {PartId(name, one, commit): blob for name, one, commit, blob in parts}, _WHERE)


def _ids(delta: IdDelta) -> bytes:
    """The snapshot of the ids. It is one part."""
    dedup = Dedup(ALL_KEYS, "count.7.j1")
    dedup.replay(delta)
    (blob,) = dedup.snapshot().blobs
    return blob


def _read_ids(blob: bytes) -> Any:
    return msgspec.msgpack.decode(Dedup.restore(ALL_KEYS, "count.7.j1", [blob], {}).snapshot().blobs[0])


_IDS: Final = msgspec.msgpack.decode(_ids(_DELTA))
_RANGED_IDS: Final = msgspec.msgpack.decode(_ids(_RANGED))

_BATCH_IDS: Final = ("query", 3, [b"c" * 16, b"d" * 16, b"e" * 16])
_IDS_JOURNAL: Final = "count.7.j1"


def _write_batch_parts(value: tuple[str, int, list[bytes]]) -> bytes:
    """The parts of a base with ids of a batch. Two of them are a part of their own."""
    dedup = Dedup(ALL_KEYS, _IDS_JOURNAL, segment_ids=2)
    dedup.replay(IdDelta(batches=[value]))
    parts = JournalBase(_IDS_JOURNAL, 7).write_base({}, dedup.snapshot(), {}, ()).parts
    return msgspec.msgpack.encode([(part.name, part.sequencer, part.commit, blob) for part, blob in parts.items()])


def _read_batch_parts(stored: bytes) -> tuple[str, int, list[bytes]]:
    parts = {PartId(name, one, commit): blob for name, one, commit, blob in msgspec.msgpack.decode(stored)}
    dedup, _ = restored_ids(ALL_KEYS, _IDS_JOURNAL, parts)
    assert dedup is not None
    ((query, known),) = dedup.tables.queries.items()
    ((batch, source),) = known.batches.items()
    return query, batch, sorted(source.seen)


_AUTHORITY_ENTRY: Final = authority.AuthorityEntry(
    [
        authority.AcceptKeys("count.7", authority.KeysRow(b"a", None, 21, 100)),
        authority.AcceptProcess("injector/s", authority.ProcessRow("p", 23, 90, True, 4)),
        authority.Expect("injector/s", ["p", "q"], 31),
        authority.Remove("injector/s", 24),
        authority.Percentile("count.7", 9_500, 95),
    ],
    {"count.7": [authority.KeysRow(b"a", b"m", 21, 100)]},
    {"injector/s": [authority.ProcessRow("p", 23, 90, True, 4)]},
    {"count.7": 100},
)
_AUTHORITY_PART: Final = authority.Part(
    "count.7",
    100,
    [authority.KeysRow(b"a", b"m", 21, 100)],
    [authority.ProcessRow("p", 23, 90, True, 4)],
    ["p", "q"],
    ["count.6"],
    {9_500: 95},
    31,
    {"injector/s": 24},
)

FORMS: Final = (
    StoredForm("interval/entry", _ENTRY, interval.encode, lambda blob: interval.decode_entry(blob, _WHERE)),
    StoredForm(
        "interval/entry with windows by columns",
        replace(_ENTRY, format=interval.PANES_FORMAT, panes=[_PANES]),
        interval.encode,
        lambda blob: interval.decode_entry(blob, _WHERE),
    ),
    StoredForm(
        "interval/entry with results as columns",
        replace(_WITH_RUNS, productions=[*_RUN.rows(), _PRODUCTION], runs=[]),
        lambda _: interval.encode(_WITH_RUNS),
        lambda blob: interval.decode_entry(blob, _WHERE),
    ),
    StoredForm(
        "interval/entry with what a source has read as columns",
        replace(_ENTRY, format=interval.RUNS_FORMAT, productions=[*_READ_RUN.rows(), _PRODUCTION]),
        lambda _: interval.encode(replace(_ENTRY, format=interval.RUNS_FORMAT, runs=[_READ_RUN])),
        lambda blob: interval.decode_entry(blob, _WHERE),
    ),
    StoredForm(
        "interval/entry with what a source has read as tables",
        replace(_ENTRY, format=interval.TABLES_FORMAT, productions=[*_READ_TABLE.rows(), _PRODUCTION]),
        lambda _: interval.encode(replace(_ENTRY, format=interval.TABLES_FORMAT, tables=[_READ_TABLE])),
        lambda blob: interval.decode_entry(blob, _WHERE),
    ),
    StoredForm(
        "interval/entry with tables for a consumer with one key",
        replace(_ENTRY, format=interval.TABLES_FORMAT, productions=[*_ONE_KEY.rows(), _PRODUCTION]),
        lambda _: interval.encode(replace(_ENTRY, format=interval.TABLES_FORMAT, tables=[_ONE_KEY])),
        lambda blob: interval.decode_entry(blob, _WHERE),
    ),
    _part("panes", [_PANES], list[PaneChange]),
    StoredForm("interval/pane of all folds", {(0, 10): [-1, _PANE, 0]}, _write_pane, _read_pane),
    StoredForm("interval/divided entry", b"an entry that is long", _write_divided, _read_divided),
    _part("meta", _META, interval.BaseMeta),
    _part("holds", [(b"cat", 1_050_000)], list[tuple[bytes, int]]),
    _part("timers, and spilled rows", [_TIMER, _OTHER_TIMER], list[interval.TimerRow]),
    _part("voids", [(b"cat", True, "tick", 18)], list[interval.VoidRow]),
    _part("outbox", [_PRODUCTION], list[interval.ProductionRow]),
    _part("inherited", [("count.7.j0", _PRODUCTION)], list[interval.InheritedRow]),
    StoredForm("interval/part/spilled index", _index_facts(_SPILLED), lambda _: _SPILLED.encode(), _read_index),
    StoredForm("ids/of an entry", _DELTA, lambda one: msgspec.msgpack.encode(one.to_wire()),
               lambda blob: decode_delta(msgspec.msgpack.decode(blob))),
    StoredForm("ids/of an entry with ranges", _RANGED, lambda one: msgspec.msgpack.encode(one.to_wire()),
               lambda blob: decode_delta(msgspec.msgpack.decode(blob))),
    StoredForm("ids/part", _IDS, lambda _: _ids(_DELTA), _read_ids),
    StoredForm("ids/part with ranges", _RANGED_IDS, lambda _: _ids(_RANGED), _read_ids),
    StoredForm("ids/parts with a part of a batch", _BATCH_IDS, _write_batch_parts, _read_batch_parts),
    _log_form(
        "entry",
        log.LogEntry(
            log.LOG_ENTRY_FORMAT, 100, 200, 5, [b"v", b"w"], [90, 95], [6], 2, [("c", 4)], ["d"], _DELTA_ROWS,
            (2, 1, 1),
        ),
    ),
    _log_form(
        "meta",
        log.LogMeta(log.LOG_ENTRY_FORMAT, 100, 200, 7, [("c", 4, 3)], [(2, 6, 300, 150, 90, 8)], (2, 1, 1)),
    ),
    _log_form("segment", log.SegmentBlob(log.LOG_ENTRY_FORMAT, 2, [b"v"], [90], [2], [80])),
    StoredForm("log/key of a segment", 258, log.row_key, lambda key: int.from_bytes(key, "big")),
    StoredForm(
        "authority/entry", _AUTHORITY_ENTRY, authority.encode, lambda blob: authority.decode_entry(blob, _WHERE)
    ),
    StoredForm("authority/part", _AUTHORITY_PART, authority.encode, lambda blob: authority.decode_part(blob, _WHERE)),
)  # fmt: skip
