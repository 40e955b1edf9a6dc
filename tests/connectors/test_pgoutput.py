"""The messages of pgoutput, and which changes come next among them (G1)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.postgres.pgoutput import (
    EPOCH,
    UNCHANGED,
    Column,
    Commit,
    Message,
    MessageError,
    Relation,
    Row,
    RowMessage,
    TransactionBegin,
    Truncate,
    parse,
)
from millwheel.connectors.postgres.transactions import ChangeReader, Position, format_lsn

lsns = st.integers(0, (1 << 64) - 1)
times = st.integers(-(1 << 62), 1 << 62)
ids = st.integers(0, (1 << 32) - 1)
names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
rows = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=50)), max_size=5).map(tuple)
columns = st.lists(st.builds(Column, st.booleans(), names, ids), max_size=5).map(tuple)
row_changes = st.one_of(
    st.builds(RowMessage, st.just("I"), ids, st.none(), st.just(False), rows),
    st.builds(RowMessage, st.just("U"), ids, st.none(), st.just(False), rows),
    st.builds(RowMessage, st.just("U"), ids, rows, st.booleans(), rows),
    st.builds(RowMessage, st.just("D"), ids, rows, st.booleans(), st.none()),
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(TransactionBegin, lsns, times, ids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Relation, ids, names, names, st.sampled_from("dnfi"), columns),
    row_changes,
    st.builds(Truncate, st.lists(ids, max_size=4).map(tuple)),
)


def encoded_row(row: Row) -> bytes:
    parts = [struct.pack(">H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, bytes):
            parts.append(b"t" + struct.pack(">i", len(value)) + value)
        else:
            parts.append(b"u")
    return b"".join(parts)


def encoded(message: Message) -> bytes:
    """The message as the manual of PostgreSQL describes it."""
    match message:
        case TransactionBegin(lsn, time, xid):
            return b"B" + struct.pack(">QqI", lsn, time - EPOCH, xid)
        case Commit(lsn, end, time):
            return b"C" + struct.pack(">BQQq", 0, lsn, end, time - EPOCH)
        case Relation(number, schema, name, identity, all_columns):
            head = struct.pack(">I", number) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
            described = [
                struct.pack(">B", one.in_identity) + one.name.encode() + b"\0" + struct.pack(">Ii", one.type, -1)
                for one in all_columns
            ]
            return b"R" + head + struct.pack(">H", len(described)) + b"".join(described)
        case RowMessage(kind, number, before, whole, after):
            parts = [kind.encode(), struct.pack(">I", number)]
            if before is not None:
                parts += [b"O" if whole else b"K", encoded_row(before)]
            if after is not None:
                parts += [b"N", encoded_row(after)]
            return b"".join(parts)
        case Truncate(numbers):
            return b"T" + struct.pack(f">IB{len(numbers)}I", len(numbers), 0, *numbers)


@given(messages)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert parse(encoded(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_longer_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encoded(message)
    with pytest.raises(MessageError):
        parse(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(MessageError):
        parse(whole + b"x")


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_a_message(junk: bytes) -> None:
    try:
        message = parse(junk)
    except MessageError:
        return
    assert message is None or len(encoded(message)) == len(junk)


@pytest.mark.parametrize("ignored", [b"O" + bytes(9), b"Y" + bytes(6), b"M" + bytes(14)])
def test_what_says_nothing_of_rows_is_left_out(ignored: bytes) -> None:
    assert parse(ignored) is None


def test_a_place_in_the_log_is_written_as_postgres_does() -> None:
    assert format_lsn(22_185_096) == "0/1528488"


SALES = Relation(7, "shop", "sales", "f", (Column(True, "cents", 23),))
OTHERS = Relation(8, "shop", "items", "f", (Column(True, "name", 25),))


@dataclass(frozen=True)
class Transaction:
    """Where its commit begins and ends, when it was, and for each change whether it is one of the table."""

    lsn: int
    end: int
    time: int
    changes: Sequence[bool]

    def messages(self) -> Iterator[Message]:
        yield TransactionBegin(self.lsn, self.time, 1)
        described = False
        for number, of_table in enumerate(self.changes):
            if not described:
                described = True
                yield from (SALES, OTHERS)
            yield RowMessage("I", SALES.id if of_table else OTHERS.id, None, False, (b"%d" % number,))
        yield Commit(self.lsn, self.end, self.time)


@st.composite
def histories(draw: st.DrawFn) -> list[Transaction]:
    """Transactions in the order of their commits. Their times are not always in that order."""
    at, found = 100, []
    for changes in draw(st.lists(st.lists(st.booleans(), max_size=6), max_size=8)):
        begin = at + draw(st.integers(0, 3))
        at = begin + draw(st.integers(1, 5))
        found.append(Transaction(begin, at, draw(st.integers(0, 50)), changes))
    return found


def peeked(history: list[Transaction], confirmed: int, upto: int, most: int) -> tuple[list[Message], bool]:
    """What the server decodes: transactions whose commits begin in a range, and whether it came to its end."""
    found: list[Message] = []
    for one in history:
        if confirmed <= one.lsn < upto:
            found += one.messages()
            if len(found) >= most:
                return found, False
    return found, True


@pytest.mark.guarantee("G1")
@given(histories(), st.data())
def test_each_change_is_found_once_and_in_order(history: list[Transaction], data: st.DataObject) -> None:
    """Readers come and go. A slot is ahead of no committed position, and its end may lie within a commit's record."""
    last = history[-1].end if history else 100
    confirmed, position, taken = 100, Position(100), list[tuple[int, int]]()
    stamped: list[int] = []
    committed = [position]
    for round_number in range(30):
        at_end = round_number >= 24
        upto = last if at_end else data.draw(st.integers(confirmed, last))
        upto = max(upto, position.lsn)
        sent, whole = peeked(history, confirmed, upto, 1_000 if at_end else data.draw(st.integers(1, 12)))
        reader = ChangeReader("shop", "sales", position)
        cut = None if at_end else data.draw(st.none() | st.integers(0, 20))
        found = [one for message in sent[:cut] for one in reader.read(message)]
        if whole and (cut is None or cut >= len(sent)):
            reader.reached(upto)
        if at_end or data.draw(st.booleans()):  # else the process dies before its commit
            position = reader.position
            taken += [(one.transaction.lsn, one.index) for one in found]
            stamped += [one.time for one in found]
            committed.append(position)
        confirmed = max(confirmed, data.draw(st.sampled_from(committed)).lsn)
    expected = [(one.lsn, index + 1) for one in history for index in range(sum(one.changes))]
    assert taken == expected
    assert position.lsn == last
    latest, expected_times = -(1 << 63), []
    for one in history:
        latest = max(latest, one.time) if any(one.changes) else latest
        expected_times += [latest] * sum(one.changes)
    assert stamped == expected_times


@pytest.mark.guarantee("G1")
def test_a_transaction_that_was_read_in_part_goes_on() -> None:
    messages = list(Transaction(110, 120, 7, [True, False, True, True]).messages())
    reader = ChangeReader("shop", "sales", Position(100))
    first = [one.index for message in messages[:4] for one in reader.read(message)]
    assert (first, reader.position) == ([1], Position(110, 1, 7))
    later = ChangeReader("shop", "sales", reader.position)
    rest = [one.index for message in messages for one in later.read(message)]
    assert (rest, later.position) == ([2, 3], Position(120, 0, 7))


@pytest.mark.guarantee("G7")
def test_event_times_do_not_go_back() -> None:
    reader = ChangeReader("shop", "sales", Position(100))
    history = [Transaction(110, 120, 7, [True]), Transaction(120, 130, 6, [True]), Transaction(130, 140, 9, [True])]
    assert [one.time for each in history for message in each.messages() for one in reader.read(message)] == [7, 7, 9]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([SALES, RowMessage("I", 7, None, False, ())], id="a change outside"),
        pytest.param([TransactionBegin(1, 1, 1), TransactionBegin(2, 2, 2)], id="a transaction within"),
        pytest.param([Commit(1, 2, 1)], id="an end without beginning"),
        pytest.param([TransactionBegin(1, 1, 1), RowMessage("I", 9, None, False, ())], id="an unknown table"),
    ],
)
def test_messages_in_an_impossible_order_are_refused(sent: list[Any]) -> None:
    reader = ChangeReader("shop", "sales", Position(0))
    with pytest.raises(MessageError):
        [found for message in sent for found in reader.read(message)]
