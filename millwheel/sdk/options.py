"""The options of a computation or a stream: guarantees, late records, failures, retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final

from millwheel.model.time import Duration, milliseconds, seconds
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
    """What happens to a late record. The enum values are those of the protobuf enum."""

    PROCESS = topology_pb2.LATE_POLICY_PROCESS
    DROP = topology_pb2.LATE_POLICY_DROP
    DIVERT = topology_pb2.LATE_POLICY_DIVERT


@dataclass(frozen=True, slots=True)
class Late:
    """What happens to a record whose timestamp is below the low watermark when it is processed (section 4.5, G14).

    ``Late.PROCESS`` (the default) passes it to ``process_record`` with ``record.late`` set, to correct an earlier
    result. ``Late.DROP`` counts it and drops it, as Zeitgeist does. :func:`divert` sends it to another stream.
    """

    action: LateAction
    stream: str | None = None
    """The stream that late records go to; None unless the action is DIVERT."""

    def __str__(self) -> str:
        return f"Late.{self.action.name}" if self.stream is None else f"divert({self.stream!r})"

    PROCESS: ClassVar[Late]
    DROP: ClassVar[Late]


Late.PROCESS = Late(LateAction.PROCESS)
Late.DROP = Late(LateAction.DROP)


def divert(stream: str) -> Late:
    """Count late records, and produce them unchanged to another stream.

    Args:
        stream: The stream, which must be one of the computation's outputs.

    Returns:
        The value for ``late=`` of ``Topology.add``.
    """
    return Late(LateAction.DIVERT, stream)


class FailureAction(Enum):
    """What happens to a record whose hook keeps failing. The enum values are those of the protobuf enum."""

    RETRY = topology_pb2.FAILURE_ACTION_RETRY
    DEAD_LETTER = topology_pb2.FAILURE_ACTION_DEAD_LETTER
    STOP = topology_pb2.FAILURE_ACTION_STOP


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What happens when a hook raises. It is made by :func:`retry`, :func:`dead_letter` and :func:`stop`.

    A failed hook leaves neither state, timers nor productions. The delays between attempts double from
    ``initial_backoff`` up to ``max_backoff`` (microseconds). Other keys are processed in the meantime.
    """

    action: FailureAction
    max_attempts: int
    """Attempts before the action is taken; 0 if the hook is retried without end."""
    initial_backoff: Duration
    max_backoff: Duration

    def to_proto(self) -> topology_pb2.FailurePolicy:
        """The policy for the topology's spec."""
        return topology_pb2.FailurePolicy(
            action=self.action.value,
            max_attempts=self.max_attempts,
            initial_backoff_us=self.initial_backoff,
            max_backoff_us=self.max_backoff,
        )


_INITIAL: Final = milliseconds(100)
_MAXIMUM: Final = seconds(30)


def retry(*, initial: Duration = _INITIAL, maximum: Duration = _MAXIMUM) -> FailurePolicy:
    """Retry without end: the default. No record is dropped, and the watermark waits for it.

    Args:
        initial: The delay after the first failure, in microseconds.
        maximum: The longest delay, in microseconds. Delays double up to it.

    Returns:
        The value for ``on_failure=`` of ``Topology.add``.
    """
    return FailurePolicy(FailureAction.RETRY, 0, initial, maximum)


def dead_letter(*, after: int = 5, initial: Duration = _INITIAL, maximum: Duration = _MAXIMUM) -> FailurePolicy:
    """After ``after`` attempts, commit the record's id together with a dead letter.

    The dead letter contains the record and the error. It goes to the stream ``dead-letters`` of the topology. If a
    timer of a step of the library is given up, the step forgets what waited for it: a window, a session or a group.

    Args:
        after: The number of attempts, at least 1.
        initial: The delay after the first failure, in microseconds.
        maximum: The longest delay, in microseconds. Delays double up to it.

    Returns:
        The value for ``on_failure=`` of ``Topology.add``.
    """
    return FailurePolicy(FailureAction.DEAD_LETTER, after, initial, maximum)


def stop(*, after: int = 3, initial: Duration = _INITIAL, maximum: Duration = _MAXIMUM) -> FailurePolicy:
    """After ``after`` attempts, stop the interval that has the key. None of its keys runs until an update.

    No record is lost: senders keep each record until its ACK. The computation's low watermark stands still.

    Args:
        after: The number of attempts, at least 1.
        initial: The delay after the first failure, in microseconds.
        maximum: The longest delay, in microseconds. Delays double up to it.

    Returns:
        The value for ``on_failure=`` of ``Topology.add``.
    """
    return FailurePolicy(FailureAction.STOP, after, initial, maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What a stream keeps for subscribers that do not exist yet.

    Older records, or records beyond the size, are deleted. A stream without a retention keeps them for one hour, and
    at most 256 MiB. That holds for the results of steps and for late records, too. Dead letters are kept for a week. A
    declaration sets another one, and an update may change it. For example::

        >>> import millwheel as mw
        >>> shop = mw.Topology("shop")
        >>> sales = shop.source("sales", int).key_by(mw.everything).latest("newest")
        >>> newest = shop.stream("newest", int, retention=mw.Retention(age=mw.days(7)))

    At least one bound must be set; None sets no bound. No retention keeps more than 12 GiB. A record is deleted only
    after every existing subscriber has acknowledged it.
    """

    age: Duration | None = None
    """The maximum age, in microseconds during which the log was served since it stored the record.

    Time without service does not count, because no subscriber could read then. A change of the clock does not count
    either.
    """
    bytes: int | None = None

    def to_proto(self) -> topology_pb2.Retention:
        """The retention for the stream's spec. 0 stands for no bound."""
        return topology_pb2.Retention(max_age_us=self.age or 0, max_bytes=self.bytes or 0)


STRAGGLER_DELAY: Final = seconds(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationOptions:
    """The options that :meth:`Topology.add` accepts. The worker applies them."""

    exactly_once: bool = True
    """Whether duplicates are dropped (6.1.1). False is for computations that are idempotent."""
    strong: bool = True
    """Whether productions are stored with the state before they are sent (6.1.2).

    False: the productions of records are sent first, and only stragglers are stored (6.1.3). The productions of timers
    are always stored first. What a record produces must depend on the record alone: not on state, the clock or
    ``record.late``. So ``late`` must be Late.PROCESS.
    """
    late: Late = Late.PROCESS
    on_failure: FailurePolicy = field(default_factory=retry)
    straggler_delay: Duration = STRAGGLER_DELAY
    """How long a weak production may wait for its ACK before it is stored, in microseconds (6.1.3)."""
