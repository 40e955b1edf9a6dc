"""The frames of appends, against the driver's encoder, hostile bytes, and a node that answers as it likes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from cassandra import AuthenticationFailed, ConsistencyLevel, InvalidRequest, Unavailable, WriteTimeout
from cassandra.cqltypes import BytesType, LongType, UTF8Type
from cassandra.protocol import ExecuteMessage, OverloadedErrorMessage, ProtocolHandler
from hypothesis import given
from hypothesis import strategies as st

from millwheel.store.cassandra.frames import (
    HEARTBEAT_SECONDS,
    MAX_ANSWER_BYTES,
    MAX_LOST_ANSWERS,
    MAX_REQUESTS,
    MAX_WARNING_CHARACTERS,
    Answer,
    ConnectionState,
    FrameError,
    encode_parameters,
)
from tests.store.cassandra.answers import (
    APPLIED,
    AUTHENTICATE,
    ERROR,
    EXECUTE,
    PREPARE,
    READY_FRAME,
    RESULT,
    SUPPORTED,
    error,
    frame,
    refusal,
    rows,
    string,
    unprepared,
)

LEVELS = [ConsistencyLevel.QUORUM, ConsistencyLevel.EACH_QUORUM, ConsistencyLevel.ALL]
BIGINTS = st.integers(-(1 << 63), (1 << 63) - 1)


def ready() -> ConnectionState:
    connection = ConnectionState("", "", 0.0)
    assert connection.received(READY_FRAME, 0.0) == []
    connection.outgoing()
    return connection


def sent(connection: ConnectionState) -> list[tuple[int, int, bytes]]:
    """Stream, opcode and body of each frame that the connection sends."""
    data, found = connection.outgoing(), []
    while data:
        version, flags, stream, opcode, size = struct.unpack_from(">BBhBI", data)
        assert (version, flags) == (4, 0)
        found.append((stream, opcode, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def execute(connection: ConnectionState, tag: int = 1) -> int:
    stream = connection.execute("UPDATE", b"id", encode_parameters([tag], ConsistencyLevel.QUORUM))
    assert stream is not None
    return stream


@given(st.lists(st.one_of(BIGINTS, st.text(), st.binary())), st.sampled_from(LEVELS))
def test_an_append_is_encoded_as_the_driver_does(values: list[int | str | bytes], level: int) -> None:
    kinds = {int: LongType, str: UTF8Type, bytes: BytesType}
    message = ExecuteMessage(
        b"id", [kinds[type(value)].serialize(value, 4) for value in values], level, ConsistencyLevel.SERIAL
    )
    connection = ready()
    stream = connection.execute("UPDATE", b"id", encode_parameters(values, level))
    expected = ProtocolHandler.encode_message(message, stream, 4, compressor=None, allow_beta_protocol_version=False)
    assert connection.outgoing() == expected


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="float is none of int, str and bytes"):
        encode_parameters([1.0], ConsistencyLevel.QUORUM)


def test_a_user_logs_in() -> None:
    connection = ConnectionState("user", "secret", 0.0)
    options = struct.pack(">H", 2) + b"".join(map(string, ("CQL_VERSION", "3.0.0", "DRIVER_NAME", "millwheel")))
    assert sent(connection) == [(0, 1, options)]
    connection.received(frame(AUTHENTICATE, 0, string("org.apache.cassandra.auth.PasswordAuthenticator")), 0.0)
    assert sent(connection) == [(0, 15, struct.pack(">i", 12) + b"\0user\0secret")]
    assert not connection.is_ready
    assert connection.execute("UPDATE", b"id", b"") is None
    connection.received(frame(16, 0, struct.pack(">i", -1)), 0.0)
    assert connection.is_ready


def test_a_login_that_is_refused_is_the_drivers_error() -> None:
    connection = ConnectionState("user", "wrong", 0.0)
    with pytest.raises(Exception, match="Bad credentials"):
        connection.received(frame(ERROR, 0, error(0x0100)), 0.0)
    with pytest.raises(AuthenticationFailed, match="no user is set"):
        ConnectionState("", "", 0.0).received(frame(AUTHENTICATE, 0, string("any")), 0.0)


@given(BIGINTS, st.lists(st.integers(1, 40)), st.booleans(), st.booleans(), st.booleans())
def test_answers_are_the_same_however_they_arrive(
    sequencer: int, cuts: list[int], traced: bool, warned: bool, with_payload: bool
) -> None:
    connection = ready()
    streams = [execute(connection) for _ in range(3)]
    flags = 2 * traced + 8 * warned + 4 * with_payload
    before = bytes(16) if traced else b""
    before += struct.pack(">H", 2) + string("first") + string("second") if warned else b""
    before += struct.pack(">H", 1) + string("key") + struct.pack(">i", 2) + b"ab" if with_payload else b""
    data = b"".join(
        frame(RESULT, stream, before + body, flags)
        for stream, body in zip(streams, (APPLIED, refusal(sequencer), rows(("[applied]", 4, b"\0"))), strict=True)
    )
    answers: list[Answer] = []
    for size in [*cuts, len(data)]:
        answers += connection.received(data[:size], 0.0)
        data = data[size:]
    first, second, third = streams
    assert answers == [
        Answer(first, [(True,)], None),
        Answer(second, [(False, sequencer, 7, None)], None),
        Answer(third, [(False,)], None),
    ]
    assert connection.take_warning() == ("second" if warned else "")
    assert connection.take_warning() == ""


def test_a_long_warning_of_a_node_is_cut() -> None:
    connection = ready()
    warnings = struct.pack(">H", 1) + string("é" * 2 * MAX_WARNING_CHARACTERS)
    connection.received(frame(RESULT, execute(connection), warnings + APPLIED, 8), 0.0)
    assert connection.take_warning() == "é" * MAX_WARNING_CHARACTERS


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (error(0x1000, struct.pack(">Hii", 4, 2, 1)), Unavailable),
        (error(0x1001), OverloadedErrorMessage),
        (error(0x1100, struct.pack(">Hii", 8, 1, 2), string("CAS")), WriteTimeout),
        (error(0x2200), InvalidRequest),
    ],
)
def test_errors_are_the_drivers(body: bytes, kind: type[Exception]) -> None:
    connection = ready()
    stream = execute(connection)
    (answer,) = connection.received(frame(ERROR, stream, body), 0.0)
    assert (answer.stream, answer.rows, type(answer.error)) == (stream, [], kind)


def test_a_statement_that_the_node_forgot_is_prepared_once() -> None:
    connection = ready()
    stream = execute(connection, 5)
    ((_, _, first),) = sent(connection)
    assert connection.received(frame(ERROR, stream, unprepared(b"id")), 0.0) == []
    assert sent(connection) == [(stream, PREPARE, struct.pack(">i", 6) + b"UPDATE")]
    assert connection.received(frame(RESULT, stream, struct.pack(">i", 4) + string("other")), 0.0) == []
    assert sent(connection) == [(stream, EXECUTE, string("other") + first[4:])]
    assert connection.received(frame(RESULT, stream, APPLIED), 0.0) == [Answer(stream, [(True,)], None)]
    stream = execute(connection)
    ((_, _, body),) = sent(connection)
    assert body.startswith(string("other")), "the node's own name of the statement is kept"
    connection.received(frame(ERROR, stream, unprepared(b"other")), 0.0)
    connection.received(frame(RESULT, stream, struct.pack(">i", 4) + string("other")), 0.0)
    (answer,) = connection.received(frame(ERROR, stream, unprepared(b"other")), 0.0)
    assert "not found on this node" in str(answer.error), "it is not prepared without end"


@pytest.mark.guarantee("G3", section="6.2")
def test_an_append_that_was_left_is_not_sent_once_more() -> None:
    for prepares in (False, True):
        connection = ready()
        stream = execute(connection)
        if prepares:
            connection.received(frame(ERROR, stream, unprepared(b"id")), 0.0)
        connection.leave(stream)
        connection.outgoing()
        last = frame(RESULT, stream, struct.pack(">i", 4) + string("id"))
        assert connection.received(last if prepares else frame(ERROR, stream, unprepared(b"id")), 0.0) == []
        assert sent(connection) == []


@pytest.mark.guarantee("G2", "G3")
@given(st.data())
def test_an_answer_goes_to_its_own_request(data: st.DataObject) -> None:
    """A node holds requests, and answers them in any order, also those whose callers have gone."""
    connection = ready()
    held: dict[int, int] = {}
    tags: dict[int, int] = {}
    left: set[int] = set()
    for tag in range(data.draw(st.integers(1, 200), label="steps")):
        step = data.draw(st.sampled_from(["execute", "execute", "leave", "answer", "forget"]))
        if step == "execute":
            stream = connection.execute("UPDATE", b"id", encode_parameters([tag], ConsistencyLevel.QUORUM))
            assert (stream is None) == (len(held) == MAX_REQUESTS)
            if stream is not None:
                assert stream not in tags
                tags[stream] = tag
        elif step == "leave" and tags.keys() - left:
            stream = data.draw(st.sampled_from(sorted(tags.keys() - left)))
            connection.leave(stream)
            left.add(stream)
        elif held:
            stream = data.draw(st.sampled_from(sorted(held)))
            forgotten = step == "forget"
            body = unprepared(b"id") if forgotten else refusal(held.pop(stream))
            answers = connection.received(frame(ERROR if forgotten else RESULT, stream, body), 0.0)
            if forgotten and stream not in left:
                assert answers == []
                ((_, opcode, _),) = sent(connection)
                assert opcode == PREPARE
                connection.received(frame(RESULT, stream, struct.pack(">i", 4) + string("id")), 0.0)
                ((again, opcode, body),) = sent(connection)
                assert (again, opcode, _tag(body)) == (stream, EXECUTE, tags[stream])
                answers = connection.received(frame(RESULT, stream, refusal(held.pop(stream))), 0.0)
            held.pop(stream, None)
            expected = tags.pop(stream)
            assert [answer.rows[0][1] for answer in answers] == ([] if stream in left else [expected])
            left.discard(stream)
        held |= {stream: _tag(body) for stream, _, body in sent(connection)}


def _tag(body: bytes) -> int:
    """The number in an execution of ``UPDATE``: behind its id, level, flags, and the count and size of its values."""
    start = 2 + struct.unpack_from(">H", body)[0] + 9
    return int(struct.unpack_from(">q", body, start)[0])


def test_requests_in_flight_are_bounded() -> None:
    connection = ready()
    streams = [execute(connection) for _ in range(MAX_REQUESTS)]
    assert len(set(streams)) == MAX_REQUESTS
    assert connection.execute("UPDATE", b"id", b"") is None
    connection.leave(streams[3])
    assert connection.execute("UPDATE", b"id", b"") is None, "its answer may still come"
    connection.received(frame(RESULT, streams[3], APPLIED), 0.0)
    assert execute(connection) == streams[3]


def test_a_silent_node_is_given_up() -> None:
    connection = ready()
    connection.tick(HEARTBEAT_SECONDS - 1)
    assert sent(connection) == []
    connection.tick(HEARTBEAT_SECONDS)
    assert sent(connection) == [(0, 5, b"")]
    connection.received(frame(SUPPORTED, 0, struct.pack(">H", 0)), HEARTBEAT_SECONDS + 1)
    connection.tick(2 * HEARTBEAT_SECONDS)
    assert sent(connection) == []
    connection.tick(3 * HEARTBEAT_SECONDS)
    connection.tick(4 * HEARTBEAT_SECONDS - 1)
    assert sent(connection) == [(0, 5, b"")], "it is asked once"
    with pytest.raises(FrameError, match="no byte for 14 s"):
        connection.tick(4 * HEARTBEAT_SECONDS)


def test_a_paused_process_asks_before_it_gives_up() -> None:
    """Regression: the first tick after a pause ended the connections to all nodes, though none had been asked."""
    connection = ready()
    connection.tick(100.0)
    assert sent(connection) == [(0, 5, b"")]
    connection.received(frame(SUPPORTED, 0, struct.pack(">H", 0)), 101.0)
    connection.tick(102.0)
    connection.tick(200.0)
    with pytest.raises(FrameError, match="no byte for 104 s"):
        connection.tick(200.0 + HEARTBEAT_SECONDS)


@pytest.mark.guarantee("G2")
def test_an_error_of_no_request_ends_the_connection() -> None:
    """Regression: it was taken for a sign of life, and its text was lost. The append waited for its whole deadline.

    It is no answer to the append either, though its code is that of a refusal.
    """
    connection = ready()
    execute(connection)
    with pytest.raises(FrameError, match=r"an error that is of no request: InvalidRequest: .*why"):
        connection.received(frame(ERROR, 0, error(0x2200)), 0.0)


@pytest.mark.guarantee("G13")
def test_answers_that_never_come_end_the_connection() -> None:
    """Regression: each took a number for good. In the end no append was sent, and heartbeats kept the connection."""
    connection = ready()
    streams = [execute(connection) for _ in range(MAX_LOST_ANSWERS + 2)]
    for stream in streams[: MAX_LOST_ANSWERS + 1]:
        connection.leave(stream)
    connection.received(frame(RESULT, streams[0], APPLIED), 0.0)
    connection.tick(1.0)
    connection.leave(streams[-1])
    with pytest.raises(FrameError, match=f"{MAX_LOST_ANSWERS + 1} answers have not come"):
        connection.tick(2.0)


@pytest.mark.parametrize(
    "data",
    [
        frame(RESULT, 2, APPLIED),
        frame(RESULT, -1, APPLIED),
        frame(SUPPORTED, 1, b""),
        frame(RESULT, 0, APPLIED),
        frame(RESULT, 1, APPLIED[:-1]),
        frame(RESULT, 1, struct.pack(">i", 1)),
        frame(RESULT, 1, struct.pack(">i", 4) + string("id")),
        frame(RESULT, 1, APPLIED, flags=1),
        frame(RESULT, 1, rows(("[applied]", 13, b"yes"))),
        frame(RESULT, 1, rows(("[applied]", 4, b""))),
        frame(RESULT, 1, rows(("[applied]", 4, b"\0"), ("sequencer", 2, b"1234"))),
        frame(RESULT, 1, struct.pack(">iii", 2, 1, 0)),
        frame(RESULT, 1, APPLIED + b"x"),
        frame(RESULT, 1, APPLIED[:-9] + struct.pack(">i", 0)),
        frame(RESULT, 1, APPLIED[:-9] + struct.pack(">i", 2) + 2 * APPLIED[-5:]),
        frame(RESULT, 1, rows(("[applied]", 4, None))),
        frame(RESULT, 1, rows(("sequencer", 2, struct.pack(">q", 1)), ("[applied]", 4, b"\0"))),
        frame(RESULT, 1, rows(("applied", 4, b"\1"))),
        frame(RESULT, 1, APPLIED[:-9] + struct.pack(">i", 1 << 30) + APPLIED[-5:]),
        frame(ERROR, 1, error(0x1100, struct.pack(">Hii", 8, 1, 2), string("NEW"))),
        b"\x83" + APPLIED,
        b"HTTP/1.1 400 Bad Request",
        struct.pack(">BBhBI", 0x84, 0, 1, RESULT, MAX_ANSWER_BYTES + 1),
    ],
)
def test_what_cannot_be_understood_ends_the_connection(data: bytes) -> None:
    connection = ready()
    assert execute(connection) == 1
    with pytest.raises(FrameError):
        connection.received(data, 0.0)


@pytest.mark.guarantee("G13")
@given(st.data())
def test_hostile_bytes_are_answered_or_refused(data: st.DataObject) -> None:
    """Whole frames with wrong bytes in them, and bytes of no form. Nothing but the named errors comes out."""
    good = [frame(RESULT, 1, APPLIED), frame(RESULT, 1, refusal(9)), frame(ERROR, 1, unprepared(b"id"))]
    raw = bytearray(data.draw(st.one_of(st.sampled_from(good), st.binary(max_size=64))))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        if place < len(raw):
            raw[place] = byte
    connection = ready()
    execute(connection)
    try:
        answers = connection.received(bytes(raw), 0.0)
    except FrameError:
        return
    assert_bounded(answers)


def assert_bounded(answers: Sequence[Answer]) -> None:
    assert len(answers) <= 1
    for answer in answers:
        assert answer.stream == 1
        assert len(answer.rows) == (answer.error is None)
