"""Records that a log has received and not committed: their admission and their queue (6.1.1; G13)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark, MinTracker
from millwheel.rpc.column_keys import key_list
from millwheel.rpc.packed_values import PackedValues, sizes_of
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import DeliveryAdmission, column_problem
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.segments import RECORD_OVERHEAD_BYTES, records_size
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.log.stored_segments import StoredRecords
from millwheel.worker.messages import AnswerDelivery, Delivery, OwnerEffect

__all__ = ["LogChunk", "LogIntake", "LogReceipt", "LogReceiver"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_INVALID: Final = DeliveryOutcome.DELIVERY_OUTCOME_INVALID


class LogReceipt:
    """The uncommitted records of one delivery. ``excluded`` records were refused, and the sender repeats them."""

    __slots__ = ("delivery", "excluded", "open")

    def __init__(self, delivery: Delivery, excluded: Sequence[int]) -> None:
        self.delivery = delivery
        self.excluded = excluded
        self.open = 0


class LogChunk:
    """A chunk: fresh records of one delivery that fit into a segment. ``indexes`` None: all that the verdict has."""

    __slots__ = ("held", "indexes", "receipt", "size", "timestamps", "values", "verdict")

    def __init__(
        self,
        receipt: LogReceipt,
        verdict: DeliveryVerdict,
        indexes: Sequence[int] | None,
        values: Sequence[bytes],
        timestamps: list[int],
        size: int,
    ) -> None:
        self.receipt = receipt
        self.verdict = verdict
        self.indexes = indexes
        self.values = values
        self.timestamps = timestamps
        self.size = size
        self.held = min(timestamps)
        """The watermark that these records hold."""
        receipt.open += 1


class LogIntake:
    """Received and uncommitted records: the queue, and those of the commit in flight. ``pending``: their timestamps."""

    def __init__(self) -> None:
        self.queue: deque[LogChunk] = deque()
        self.pending = MinTracker()
        self.bytes = 0

    def put(self, chunk: LogChunk) -> None:
        """Queue a chunk. It holds the watermark from now on."""
        self.queue.append(chunk)
        self.pending.add(chunk.held)
        self.bytes += chunk.size

    def take(self, limit: int) -> list[LogChunk]:
        """Remove the next chunks from the queue, up to ``limit`` bytes but at least one."""
        taken: list[LogChunk] = []
        size = 0
        while self.queue and (not taken or size + self.queue[0].size <= limit):
            chunk = self.queue.popleft()
            taken.append(chunk)
            size += chunk.size
        return taken

    def settle(self, chunk: LogChunk) -> bool:
        """The chunk is committed. Returns whether it was the last of its delivery."""
        self.pending.remove(chunk.held)
        self.bytes -= chunk.size
        chunk.receipt.open -= 1
        return chunk.receipt.open == 0


class LogReceiver:
    """Checks deliveries and queues the fresh records."""

    def __init__(
        self,
        config: LogConfig,
        ids: AdmissionState,
        inputs: InputWatermark,
        intake: LogIntake,
        records: StoredRecords,
        cursors: Cursors,
    ) -> None:
        """
        Args:
            config: The log's identity and limits.
            ids: The ids that it knows.
            inputs: The watermarks of its senders.
            intake: Its queue.
            records: Its committed records.
            cursors: Its cursors, which decide what it keeps.
        """
        self.admission = DeliveryAdmission(ids, self, config.settings.queue_bytes, lambda receipt, _: receipt.open == 0)
        self._config = config
        self._settings = config.settings
        self._inputs = inputs
        self._intake = intake
        self._records = records
        self._cursors = cursors

    def deliver(self, delivery: Delivery) -> list[OwnerEffect]:
        """Check a delivery. Every record of it is finally ACKed, or answered with another outcome."""
        if delivery.stream != self._config.stream:
            return [AnswerDelivery(delivery, _INVALID, (), f"this is the log of stream {self._config.stream!r}")]
        if (problem := column_problem(delivery)) is not None:
            return [AnswerDelivery(delivery, _INVALID, (), problem)]
        if not delivery.keys:
            return [AnswerDelivery(delivery, _ACKED)]
        out: list[OwnerEffect] = []
        self.admission.arrivals.arrived(delivery, out)
        return out

    # The queue, as the admission sees it.

    def has_room(self) -> bool:
        """Whether there is room for any record: below the cap, and in memory."""
        settings, intake, records = self._settings, self._intake, self._records
        return (
            records.kept + intake.bytes < settings.cap_bytes
            and intake.bytes < settings.queue_bytes
            and records.dirty_memory < settings.memory_bytes
        )

    def bound(self, delivery: Delivery) -> tuple[int, str]:
        """The bound is at least the input watermark, unless the log is far above its cap.

        Records that hold the watermark are accepted up to a quarter above the cap. So a full log does not stop the
        watermark for all consumers. Above that, everything is refused: a subscriber that never returns must not fill
        the store.
        """
        settings, intake = self._settings, self._intake
        kept = self._records.kept + intake.bytes
        if kept >= settings.cap_bytes:
            hard = kept >= settings.cap_bytes + settings.cap_bytes // 4
            return (MIN_TIMESTAMP - 1 if hard else self._inputs.value), self._cap_reason(kept)
        least = min(intake.pending.min(), max(delivery.timestamps))
        return max(least, self._inputs.value), "intake is full: the store is behind"

    def _cap_reason(self, kept: int) -> str:
        stream, cap, end = self._config.stream, self._settings.cap_bytes, self._records.end
        slowest, oldest = self._cursors.slowest(), self._records.oldest()
        full = f"the log of stream {stream!r} keeps {kept:,} bytes, and its cap is {cap:,}"
        if slowest is None or (oldest is not None and slowest[1] >= oldest.end):
            return f"{full}: no cursor waits for the oldest, so they go with its next commit"
        name, acked = slowest
        return (
            f"{full}: the slowest cursor is {name!r}, at offset {acked:,} of {end:,}; have its subscriber acknowledge, "
            f"or delete it with `millwheel stream cursors delete {stream} {name}`"
        )

    def put(
        self, delivery: Delivery, verdict: DeliveryVerdict | None, fresh: Sequence[int], excluded: Sequence[int]
    ) -> LogReceipt:
        """Queue fresh records, in chunks that each fit into a segment."""
        assert verdict is not None, "a log always checks for duplicates"
        receipt = LogReceipt(delivery, excluded)
        # A log stores the records of columns one by one. Packed values are stored as they are.
        values = delivery.values if isinstance(delivery.values, list | PackedValues) else list(delivery.values)
        timestamps = delivery.timestamps if isinstance(delivery.timestamps, list) else list(delivery.timestamps)
        delivery.values, delivery.keys = values, key_list(delivery.keys)
        whole = len(fresh) == len(values)
        if not whole:
            own = values.tolist() if isinstance(values, PackedValues) else values
            values, timestamps = [own[index] for index in fresh], [timestamps[index] for index in fresh]
        size, limit = records_size(values), self._settings.segment_bytes
        put = self._intake.put
        if size <= limit:
            put(LogChunk(receipt, verdict, None if whole else fresh, values, timestamps, size))
            return receipt
        for first, last, size in _cut(values, limit):
            part = fresh[first:last]
            put(LogChunk(receipt, verdict, part, values[first:last], timestamps[first:last], size))
        return receipt


def _cut(values: Sequence[bytes], limit: int) -> list[tuple[int, int, int]]:
    """(first, last + 1, size) of each chunk of a delivery that is too large for one segment."""
    cuts: list[tuple[int, int, int]] = []
    first = size = 0
    for index, of_value in enumerate(sizes_of(values)):
        one = of_value + RECORD_OVERHEAD_BYTES
        if size and size + one > limit:
            cuts.append((first, index, size))
            first, size = index, 0
        size += one
    cuts.append((first, len(values), size))
    return cuts
