"""What a node of Cassandra sends: frames of the native protocol, written down plainly from its specification."""

from __future__ import annotations

import struct

ERROR, STARTUP, READY, AUTHENTICATE, SUPPORTED, RESULT, PREPARE, EXECUTE = 0, 1, 2, 3, 6, 8, 9, 10


def frame(opcode: int, stream: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BBhBI", 0x84, flags, stream, opcode, len(body)) + body


def string(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def rows(*columns: tuple[str, int, bytes | None]) -> bytes:
    """The body of one row: of each column its name, type and value."""
    body = struct.pack(">iii", 2, 1, len(columns)) + string("keyspace") + string("journals")
    for name, kind, _ in columns:
        body += string(name) + struct.pack(">H", kind)
    body += struct.pack(">i", 1)
    for _, _, value in columns:
        body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return body


def refusal(sequencer: int, commit: int = 7) -> bytes:
    return rows(
        ("[applied]", 4, b"\0"),
        ("sequencer", 2, struct.pack(">q", sequencer)),
        ("commit", 2, struct.pack(">q", commit)),
        ("truncation_point", 2, None),
    )


APPLIED = rows(("[applied]", 4, b"\1"))
READY_FRAME = frame(READY, 0, b"")


def error(code: int, *extra: bytes, text: str = "why") -> bytes:
    return struct.pack(">i", code) + string(text) + b"".join(extra)


def unprepared(query_id: bytes) -> bytes:
    return error(0x2500, struct.pack(">H", len(query_id)), query_id)
