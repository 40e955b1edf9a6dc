"""What a topology states about a computation beside its streams: guarantees, late records, failures, retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final

from millwheel.core.time import Duration, milliseconds, seconds
from millwheel.rpc.v1 import topology_pb2

__all__ = [
    "STRAGGLER_DELAY",
    "ComputationOptions",
    "FailureAction",
    "FailurePolicy",
    "Late",
    "LateAction",
    "Retention",
    "dead_letter",
    "divert",
    "retry",
    "stop",
]


class LateAction(Enum):
    """What becomes of a late record; the values are those of the wire."""

    PROCESS = topology_pb2.LATE_POLICY_PROCESS
    DROP = topology_pb2.LATE_POLICY_DROP
    DIVERT = topology_pb2.LATE_POLICY_DIVERT


@dataclass(frozen=True, slots=True)
class Late:
    """What becomes of a record whose timestamp is below the low watermark when it arrives (section 4.5, G14).

    ``Late.PROCESS`` (the default) hands it to ``process_record`` with ``record.late`` set, to correct an
    earlier result. ``Late.DROP`` counts it and drops it, as Zeitgeist does. :func:`divert` sends it
    elsewhere.
    """

    action: LateAction
    stream: str | None = None
    """Where late records go; None unless the action is DIVERT."""

    PROCESS: ClassVar[Late]
    DROP: ClassVar[Late]


Late.PROCESS = Late(LateAction.PROCESS)
Late.DROP = Late(LateAction.DROP)


def divert(stream: str) -> Late:
    """Count late records and produce them, as they came, to ``stream``, which must be one of the outputs."""
    return Late(LateAction.DIVERT, stream)


class FailureAction(Enum):
    """What becomes of a record whose hook keeps failing; the values are those of the wire."""

    RETRY = topology_pb2.FAILURE_ACTION_RETRY
    DEAD_LETTER = topology_pb2.FAILURE_ACTION_DEAD_LETTER
    STOP = topology_pb2.FAILURE_ACTION_STOP


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What to do when a hook raises; made by :func:`retry`, :func:`dead_letter` and :func:`stop`.

    A failed hook leaves no trace: neither state, timers nor productions. The waits between attempts
    double from ``initial_backoff`` up to ``max_backoff`` (microseconds); other keys go on meanwhile.
    """

    action: FailureAction
    max_attempts: int
    """Attempts before the action is taken; 0 for one that never is."""
    initial_backoff: Duration
    max_backoff: Duration

    def to_proto(self) -> topology_pb2.FailurePolicy:
        """The policy as the topology's spec carries it."""
        return topology_pb2.FailurePolicy(
            action=self.action.value,
            max_attempts=self.max_attempts,
            initial_backoff_us=self.initial_backoff,
            max_backoff_us=self.max_backoff,
        )

    @classmethod
    def from_proto(cls, spec: topology_pb2.FailurePolicy) -> FailurePolicy:
        """The policy that ``spec`` states; ValueError for an action that this version does not know."""
        return cls(
            FailureAction(spec.action),
            spec.max_attempts,
            Duration(spec.initial_backoff_us),
            Duration(spec.max_backoff_us),
        )


_INITIAL: Final = milliseconds(100)
_MAXIMUM: Final = seconds(30)


def retry(*, initial: Duration = _INITIAL, maximum: Duration = _MAXIMUM) -> FailurePolicy:
    """Try again for ever, the default: no record is given up, and the watermark waits for it."""
    return FailurePolicy(FailureAction.RETRY, 0, initial, maximum)


def dead_letter(*, after: int = 5, initial: Duration = _INITIAL, maximum: Duration = _MAXIMUM) -> FailurePolicy:
    """After ``after`` attempts, commit the record's id together with a dead letter.

    The letter goes to the stream ``<topology>.dead-letters``, with the record and the error.
    """
    return FailurePolicy(FailureAction.DEAD_LETTER, after, initial, maximum)


def stop(*, after: int = 3, initial: Duration = _INITIAL, maximum: Duration = _MAXIMUM) -> FailurePolicy:
    """After ``after`` attempts, stop the computation; nothing is lost, its senders keep what it has not ACKed."""
    return FailurePolicy(FailureAction.STOP, after, initial, maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What a stream keeps for subscribers that do not exist yet; whatever is older, or beyond, goes.

    Both may be given; None sets no bound, but one of them must be set. Only records that every existing
    subscriber has acknowledged go.
    """

    age: Duration | None = None
    """In microseconds for which the log has been served since it took the record: what nobody could read does not
    grow old, and no clock that is set makes it."""
    bytes: int | None = None

    def to_proto(self) -> topology_pb2.Retention:
        """The retention as the stream's spec carries it; 0 stands for no bound."""
        return topology_pb2.Retention(max_age_us=self.age or 0, max_bytes=self.bytes or 0)


STRAGGLER_DELAY: Final = seconds(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationOptions:
    """All that :meth:`Topology.add` lets be chosen; the worker obeys it."""

    exactly_once: bool = True
    """Drop duplicates (6.1.1). False is for computations that are idempotent anyway."""
    strong: bool = True
    """Store productions with the state before they are sent (6.1.2).

    False: send what records produce first, and store stragglers (6.1.3). What timers produce is stored first.
    """
    late: Late = Late.PROCESS
    on_failure: FailurePolicy = field(default_factory=retry)
    straggler_delay: Duration = STRAGGLER_DELAY
    """How long a weak production may wait for its ACK before it is stored, in microseconds (6.1.3)."""
