"""What goes into an injector's core and what comes out (section 5.2). Times are microseconds of any steady clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millwheel.client.injector.ids import IdScope
from millwheel.sdk.errors import UsageError

__all__ = ["Columns", "Connect", "Disconnect", "Instruction", "Limits", "Send", "within"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an injector. Durations are in microseconds."""

    batch_records: int = 1_000
    batch_bytes: int = 256 << 10
    """A batch is closed at so many records, or bytes of values."""
    window_records: int = 50_000
    """Un-ACKed records, at most; one that goes to two consumers counts twice."""
    window_bytes: int = 64 << 20
    """Un-ACKed bytes of values; overshot by no more than one call's records."""
    linger: int = 2_000
    """How long a record may wait for others while earlier ones are on their way; none waits otherwise."""
    retry_first: int = 20_000
    retry_last: int = 1_000_000
    """Before refused records are sent again: doubled from refusal to refusal."""
    resend_after: int = 30_000_000
    """What was not answered for so long is sent again: no receiver's silence loses a record."""
    max_flights: int = 64
    """Batches of one interval on their way, at most."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < (0 if name == "linger" else 1):
                raise UsageError(f"injector limit {name} must be positive, not {getattr(self, name)}")


@dataclass(slots=True)
class Columns:
    """Records to be sent, as columns of equal length: record i has timestamps[i] and ids[i], in microseconds and
    within ``scope``, and the key keys[c][i] at consumer (incarnation) c.

    A column of keys may end early; ``unkeyed`` says why the next record has no key at that consumer."""

    values: Sequence[bytes]
    timestamps: Sequence[int]
    keys: Mapping[str, Sequence[bytes]]
    scope: IdScope
    ids: Sequence[int] | Sequence[bytes]
    unkeyed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connect:
    """Keep a Deliver stream to this worker open, again and again, until told to disconnect."""

    address: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """No record goes to this worker any more."""

    address: str


@dataclass(slots=True, eq=False)
class Send:
    """One batch for one interval; the answer carries ``token``. Lists are not to be changed by anyone."""

    address: str
    token: int
    consumer: str
    journal: str
    scope: IdScope
    keys: Sequence[bytes]
    values: Sequence[bytes]
    timestamps: Sequence[int]
    ids: Sequence[int] | Sequence[bytes]
    watermark: int
    mark: int = 0
    unacked: Sequence[int] = ()


Instruction = Connect | Disconnect | Send


def within(data: list[bytes], most: int) -> list[bytes]:
    """As many of ``data`` as come to ``most`` bytes, and at least one."""
    while len(data) > 1 and sum(map(len, data)) > most:
        data = data[: len(data) // 2]
    return data
