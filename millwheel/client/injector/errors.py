"""Errors that end an injector, and refusals (section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.sdk.errors import MillwheelError, UsageError

__all__ = [
    "ForgottenIdsError",
    "InjectorClosedError",
    "InjectorError",
    "InjectorSupersededError",
    "InvalidRecordsError",
    "NotAckedError",
    "RecordsLeftError",
    "RefusedRecordError",
    "StreamDrainingError",
    "WrongIdOrKeyError",
]


class InjectorError(MillwheelError):
    """The base class of an injector's errors."""


class InjectorSupersededError(InjectorError):
    """A newer process has this one's name. It has to send what is un-ACKed here (fig. 12)."""

    def __init__(self, stream: str, process: str, why: str) -> None:
        super().__init__(
            f"injector process {process!r} of stream {stream!r} has a successor ({why}): this one has stopped; "
            "run one process per name, or give this one another name"
        )


class InvalidRecordsError(InjectorError):
    """A worker refused records that can never be accepted as they are. They stay un-ACKed, and hold the watermark."""

    def __init__(
        self, stream: str, consumer: IncarnationId, keys: Sequence[bytes], ids: Sequence[object], why: str
    ) -> None:
        shown = ", ".join(
            f"key {key[:80].decode('utf-8', 'backslashreplace')!r} id {id_.hex() if isinstance(id_, bytes) else id_}"
            for key, id_ in list(zip(keys, ids, strict=True))[:3]
        )
        more = "" if len(keys) <= 3 else f" and {len(keys) - 3:,} more of the same batch"
        super().__init__(f"{consumer!r} cannot take records of stream {stream!r}: {why} (sent: {shown}{more})")


class NotAckedError(InjectorError):
    """Records were not ACKed within the caller's time limit. The injector continues to send them."""

    def __init__(self, stream: str, process: str, seconds: float, why: str) -> None:
        reason = why or "the last ACKs came just now: try again"
        super().__init__(
            f"injector process {process!r} of stream {stream!r}: not everything is ACKed after {seconds:g} s: {reason}"
        )


class StreamDrainingError(InjectorError):
    """Every topology that reads the stream drains or has ended. Only accepted records are delivered."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} takes no new records: every topology that reads it is draining or has ended; "
            "submit one that reads it, and open the injector again"
        )


class RecordsLeftError(InjectorError):
    """The stream's consumers ended before they had processed all accepted records."""

    def __init__(self, stream: str, computation: str) -> None:
        super().__init__(
            f"{computation!r}, which read stream {stream!r}, has ended with records un-ACKed: they are not in; "
            "send them again from a new injector, under the ids that they have"
        )


class WrongIdOrKeyError(UsageError):
    """An id or a key that the caller has given for one record is none."""


class RefusedRecordError(MillwheelError):
    """A record that the stream does not take, among records that are sent together. None of them was sent.

    Attributes:
        index: Its place among them.
        why: What is wrong with it: a ValueEncodeError, KeyExtractionError or TooLargeError.
    """

    def __init__(self, index: int, why: MillwheelError) -> None:
        super().__init__(f"record {index}: {why}")
        self.index = index
        self.why = why


class ForgottenIdsError(MillwheelError):
    """A record so old that the stream may have forgotten its id. None of the records of the call was sent.

    If it was sent before, it would count as a new record now.

    Attributes:
        index: Its place among the records of the call.
        kept_from: Ids of records from this time on are known, in microseconds.
    """

    def __init__(self, index: int, timestamp: int, kept_from: int) -> None:
        super().__init__(
            f"its time is {format_timestamp(Timestamp(timestamp))}, and the stream knows the ids of records from "
            f"{format_timestamp(Timestamp(kept_from))} on: if it was sent before, it would count twice"
        )
        self.index = index
        self.kept_from = kept_from


class InjectorClosedError(InjectorError):
    """The injector has been closed, or has finished its stream."""
