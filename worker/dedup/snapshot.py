"""Base parts with everything that a ``Dedup`` has committed, and the start of a child from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millwheel.model.deliveries import split_ids
from millwheel.model.keys import KeyInterval
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup.batches import BatchPart
from millwheel.worker.dedup.decoding import decode_positions, decode_ranges, decode_sequencer
from millwheel.worker.dedup.known_sequencers import group_of_life, life_span
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.pieces import PositionPiece
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.results import FORMAT, RANGES_FORMAT, DedupError, encode_positions, encode_ranges
from millwheel.worker.dedup.tables import Tables

__all__ = ["DEDUP_PART", "DedupSnapshot", "dump", "encode_batch_ids", "inherit", "load"]

DEDUP_PART: Final = "dedup"
"""The kind of base part that holds the ids in memory, and the names of the segments."""

_ROW_IDS: Final = 16_384
BLOB_BYTES: Final = 1 << 20
"""A blob is closed when its rows reach this size. A row is at most a quarter of it."""

Row = list[Any]


@dataclass(frozen=True, slots=True)
class DedupSnapshot:
    """Base parts. ``segments`` are the stored id segments that the blobs refer to. They must stay until the
    journal's head names a later snapshot that does not refer to them.

    ``batch_ids`` are further base parts, with ids of batches. The base writes those that have no part yet, in the form
    that ``encode_batch_ids`` returns, and names them all.
    """

    blobs: tuple[bytes, ...]
    segments: tuple[str, ...]
    batch_ids: tuple[tuple[str, int, BatchPart], ...] = ()
    """The query, the batch, and ids of it."""


def encode_batch_ids(query: str, batch: int, ids: bytes) -> bytes:
    """The content of a part with ids of a batch. It is read as each blob is, also by earlier versions."""
    return msgspec.msgpack.encode((FORMAT, [("batch", query, batch, ids)]))


def dump(tables: Tables, part_ids: int) -> DedupSnapshot:
    """The committed state. Pending ids are not part of it. ``part_ids``: as many ids of a batch become a part."""
    batches = [(query.query, batch) for query in tables.queries.values() for batch in query.batches.values()]
    for _, batch in batches:
        batch.seal_full_parts(part_ids)
    batch_ids = tuple((query, batch.batch, one) for query, batch in batches for one in batch.stored)
    encode = msgspec.msgpack.Encoder().encode
    ranged = any(piece.ranges for source in tables.positions.values() for piece in source.pieces)
    number = RANGES_FORMAT if ranged else FORMAT
    blobs: list[bytes] = []
    rows: list[bytes] = []
    size = 0
    for row in _rows(tables):
        rows.append(encode(row))
        size += len(rows[-1])
        if size >= BLOB_BYTES:
            blobs.append(_blob(number, rows))
            rows, size = [], 0
    blobs.append(_blob(number, rows))
    stored = [n for source in tables.opaque.values() for n, segment in source.segments.items() if segment.ids is None]
    return DedupSnapshot(tuple(blobs), tuple(stored), batch_ids)


def _blob(number: int, rows: list[bytes]) -> bytes:
    return msgspec.msgpack.encode((number, [msgspec.Raw(row) for row in rows]))


def _rows(tables: Tables) -> Iterator[Row]:
    yield ["counter", tables.segment_number]
    left_out = tuple(map(life_span, tables.uncommitted_floors))
    for row in tables.sequencers.rows():
        if not (isinstance(row[1], str) and row[1].startswith(left_out)):
            yield ["sequencer", *row]
    for source in tables.positions.values():
        pieces = [[p.interval.start, p.interval.end, p.mark, sorted(p.holes)] for p in source.pieces]
        yield ["sequence", source.sequence, source.injector, pieces]
        for chunk in _chunks(sorted(source.seen)):
            yield ["seen", source.sequence, *encode_positions(chunk)]
        for at, piece in enumerate(source.pieces):
            for some in _chunks(list(piece.ranges), _ROW_IDS // 2):  # a range is two numbers
                yield ["ranges", source.sequence, at, encode_ranges(some)]
    for opaque in tables.opaque.values():
        yield from _opaque_rows(opaque)
    for query in tables.queries.values():
        # The completed batch needs no row: it is the highest batch with committed ids.
        for batch in query.batches.values():
            for ids in _chunks(batch.unstored):
                yield ["batch", query.query, batch.batch, b"".join(ids)]


def _opaque_rows(source: OpaqueSource) -> Iterator[Row]:
    yield ["horizon", source.group, source.watermark, source.horizon]
    for run in source.runs:
        for ids in _chunks(run.ids):
            yield ["ids", source.group, run.collect, b"".join(ids)]
    for segment in source.segments.values():
        if segment.ids is None:
            yield ["segment", source.group, segment.name, segment.collect]
        else:
            for ids in _chunks(list(segment.ids)):
                yield ["ids", source.group, segment.collect, b"".join(ids)]


def _chunks(ids: list[Any], most: int = _ROW_IDS) -> Iterator[list[Any]]:
    return (ids[at : at + most] for at in range(0, len(ids), most))


def load(
    tables: Tables, blobs: Iterable[bytes], filters: Mapping[str, bytes], batch_ids: Mapping[PartId, bytes], *,
    of_parent: bool = False,
) -> None:  # fmt: skip
    """Load a snapshot into empty ``tables``.

    Args:
        tables: They get its content.
        blobs: Its base parts.
        filters: The stored filter of each segment, by name.
        batch_ids: Its base parts with ids of batches, which later bases name again.
        of_parent: It is only for ``inherit``, so no base names its parts again.

    Raises:
        CorruptValueError: A part cannot be read; the error names the journal and the part.
    """
    for part, blob in batch_ids.items():
        with _reading(tables, part.name):
            _load_batch_ids(tables, blob, None if of_parent else part)
    for at, blob in enumerate(blobs):
        with _reading(tables, f"{DEDUP_PART}/{at}"):
            _load_blob(tables, blob, filters)


@contextmanager
def _reading(tables: Tables, part: str) -> Iterator[None]:
    """Damage must stop this one interval. Any other error is one of the program, and stops its whole worker."""
    where = f"journal {tables.journal}, base part {part}"
    try:
        yield
    except DedupError as error:
        raise CorruptValueError(where, str(error)) from error
    except (msgspec.MsgspecError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
            ValueError) as error:  # fmt: skip
        raise CorruptValueError(where, f"its ids cannot be read: {error!r}") from error


def _load_batch_ids(tables: Tables, blob: bytes, part: PartId | None) -> None:
    number, rows = msgspec.msgpack.decode(blob)
    if number != FORMAT or [row[0] for row in rows] != ["batch"]:
        raise DedupError("it has other content than ids of a batch")
    _, query, batch, ids = rows[0]
    tables.query(query).remember(batch, split_ids(ids), part)


def _load_blob(tables: Tables, blob: bytes, filters: Mapping[str, bytes]) -> None:
    number, rows = msgspec.msgpack.decode(blob)
    if number not in (FORMAT, RANGES_FORMAT):
        raise DedupError(f"ids of format {number}; this version reads formats {FORMAT} and {RANGES_FORMAT}")
    for kind, *rest in rows:
        _load_row(tables, kind, rest, filters)


def _load_row(tables: Tables, kind: str, row: Row, filters: Mapping[str, bytes]) -> None:
    match kind:
        case "counter":
            tables.segment_number = row[0]
        case "sequencer":
            tables.sequencers.learn(*decode_sequencer(row))
        case "sequence":
            name, injector, pieces = row
            cut = [PositionPiece(KeyInterval(start, end), mark, holes) for start, end, mark, holes in pieces]
            source = tables.positions[name] = PositionSource(name, tables.interval, cut, set())
            source.injector = injector
        case "seen":
            tables.positions[row[0]].remember(decode_positions(row[1:]))
        case "ranges":
            name, at, numbers = row
            tables.positions[name].restore(at, decode_ranges(numbers))
        case "horizon":
            tables.opaque_source(row[0]).watermark, tables.opaque_source(row[0]).horizon = row[1], row[2]
        case "ids":
            tables.opaque_source(row[0]).remember(row[1], split_ids(row[2]))
        case "segment":
            group, name, collect = row
            if name not in filters:
                raise DedupError(f"the filter of id segment {name} is missing")
            tables.opaque_source(group).load_segment(name, collect, filters[name])
        case "batch":
            tables.query(row[0]).remember(row[1], split_ids(row[2]))
        case _:
            raise DedupError(f"row {kind!r} of a snapshot is unknown")


def inherit(tables: Tables, parents: Sequence[Tables]) -> None:
    """Fill empty ``tables`` from ``parents``: the one parent of a split, or those of a merge.

    Known facts are united. If one parent has no marks for a sequence, then its keys have none here either. The sequence
    may have been retired there, so it must be looked up before it is admitted.

    A parent that has not heard of an injector group's newest life knows nothing of that life.
    """
    rows = [row for parent in parents for row in parent.sequencers.rows()]
    for row in rows:
        if group_of_life(row[1]):
            tables.sequencers.learn(*row)
    for parent in parents:
        _end_former_lives(parent, tables)
        for row in parent.sequencers.rows():
            tables.sequencers.learn(*row)
    for name in dict.fromkeys(name for parent in parents for name in parent.positions):
        sources = [parent.positions[name] for parent in parents if name in parent.positions]
        child = _inherit_sequence(tables.interval, sources)
        if child.pieces:
            tables.positions[name] = child
    for parent in parents:
        for opaque in parent.opaque.values():
            tables.opaque_source(opaque.group).inherit(opaque)
        for query in parent.queries.values():
            if query.completed is not None:
                tables.query(query.query).inherit(query)


def _end_former_lives(parent: Tables, child: Tables) -> None:
    """Raise the floors of a parent to those that the child knows. An earlier version's parent may have none."""
    for _, span, floor in child.sequencers.rows():
        group = group_of_life(span)
        if group and floor > parent.sequencers.floor(group):
            known = parent.sequencers.has_above(group, floor)
            parent.sequencers.learn("", span, floor)
            if not known:
                parent.end_former_life(group)


def _inherit_sequence(interval: KeyInterval, sources: Sequence[PositionSource]) -> PositionSource:
    pieces = sorted(
        (piece for source in sources for piece in source.inherited_by(interval)), key=lambda piece: piece.interval.start
    )
    child = PositionSource(sources[0].sequence, interval, pieces, set().union(*(source.seen for source in sources)))
    child.injector = sources[0].injector
    child.join_equal_pieces()
    return child
