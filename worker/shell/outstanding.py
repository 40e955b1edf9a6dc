"""Outstanding batches: those with answers to come (delivery.proto: a batch may get several answers)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millwheel.rpc.v1 import delivery_pb2 as wire

__all__ = ["OutstandingBatches"]


class OutstandingBatches:
    """Outstanding batches by token, from their sending to their last answer.

    A batch may be refused in part (FULL, with the indexes), and ACKed in steps (with the indexes that are not ACKed,
    refused ones included). It is complete when every record is refused or ACKed.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, set[int]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, token: int) -> bool:
        return token in self._open

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._open))

    def add(self, token: int, records: int) -> None:
        """Add a batch of ``records`` records."""
        self._open[token] = (records, set())

    def answered(self, token: int, outcome: wire.DeliveryOutcome.ValueType, indexes: Sequence[int]) -> bool:
        """Process an answer. Returns whether the batch is complete."""
        known = self._open.get(token)
        if known is None:
            return True
        records, refused = known
        if outcome == wire.DELIVERY_OUTCOME_ACKED:
            done = refused.issuperset(indexes)
        elif outcome == wire.DELIVERY_OUTCOME_REFUSED_FULL and indexes:
            refused.update(indexes)
            done = len(refused) >= records
        else:
            done = True
        if done:
            del self._open[token]
        return done

    def clear(self) -> None:
        """Forget all batches."""
        self._open.clear()
