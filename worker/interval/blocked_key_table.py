"""The blocked keys of one interval, each with its work that waits (section 4.1).

Processing is serial per key. A key is *blocked* while its state is read, while its asynchronous hook runs, or until a
failed hook is retried. Records that arrive for a blocked key wait with it. The other keys go on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from millwheel.model.time import TimeDomain
from millwheel.worker.interval.failing_keys import FailingKeys, KeyFailure
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.intake import DeliveryReceipt, IntervalIntake

__all__ = ["BlockedKey", "BlockedKeyTable", "Item", "RecordItem", "TimerItem", "Wait"]


class Wait(Enum):
    """Why a key is blocked."""

    READY = "for the commit at hand, or for its next attempt"
    STATE = "for its state to be read"
    HOOK = "for its asynchronous hook to end"


class RecordItem(NamedTuple):
    """A record that waits with its blocked key."""

    receipt: DeliveryReceipt
    record: int
    """Its index in the delivery."""


TimerItem = tuple[int, TimeDomain, str]
"""Time, time domain, tag. A plain tuple, because there is one for every timer that fires."""
Item = RecordItem | TimerItem
"""One call of a hook."""


class BlockedKey:
    """A blocked key, with its records in order and its timers that have become due meanwhile.

    The next ``alone`` hooks run one per commit, because a hook of the key failed. The effect of one hook can be undone
    separately only if the commit has no other work of the key. Before these, ``together`` hooks run in one commit: they
    were undone only because a later one needed a page. ``attempts`` counts the failures of ``failing``.
    ``failure`` describes the last of them for operators. ``hold`` covers the event-time timers in ``due``.
    """

    __slots__ = ("alone", "attempts", "due", "failing", "failure", "hold", "items", "retry_at", "together", "wait")

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.items: deque[RecordItem] = deque()
        self.due: list[TimerItem] = []
        self.hold: Hold | None = None
        self.together = 0
        self.alone = 0
        self.attempts = 0
        self.failing: Item | None = None
        self.failure: KeyFailure | None = None
        self.retry_at = 0

    def one_runs(self) -> None:
        """One of the hooks that run together or alone is called."""
        if self.together:
            self.together -= 1
        else:
            self.alone = max(0, self.alone - 1)

    def take_due(self) -> tuple[list[TimerItem], Hold | None]:
        """Take the due timers and their hold. The caller releases it."""
        taken = self.due, self.hold
        self.due, self.hold = [], None
        return taken


class BlockedKeyTable:
    """The blocked keys, by key.

    Invariant: ``ready`` has the blocked keys whose wait is READY, except those with a retry time. ``_retries`` has the
    retry times, and possibly outdated ones.
    """

    def __init__(self, intake: IntervalIntake) -> None:
        self._intake = intake
        self.keys: dict[bytes, BlockedKey] = {}
        self.ready: dict[bytes, None] = {}
        self.failing = FailingKeys()
        """Keys that are blocked by a raising hook, for operators."""
        self.unblocked = 0
        """How often a key was unblocked."""
        self._retries: list[tuple[int, bytes]] = []

    def block(self, key: bytes, wait: Wait) -> BlockedKey:
        """Block the key, or change why it is blocked."""
        blocked = self.keys.get(key)
        if blocked is None:
            blocked = self.keys[key] = BlockedKey(wait)
        blocked.wait = wait
        blocked.retry_at = 0
        if wait is Wait.READY:
            self.ready[key] = None
        else:
            self.ready.pop(key, None)
        return blocked

    def retry(self, key: bytes, at: int) -> None:
        """Keep a blocked key blocked until time ``at`` (by ``elapsed``)."""
        self.keys[key].retry_at = at
        self.ready.pop(key, None)
        heapq.heappush(self._retries, (at, key))

    def next_retry(self) -> int | None:
        """The earliest retry time of a blocked key. None: no key waits for a time."""
        while self._retries:
            at, key = self._retries[0]
            blocked = self.keys.get(key)
            if blocked is not None and blocked.retry_at == at:
                return at
            heapq.heappop(self._retries)
        return None

    def ready_keys(self, now: int) -> list[bytes]:
        """The blocked keys that can run now, by time ``now``."""
        while (at := self.next_retry()) is not None and at <= now:
            _, key = heapq.heappop(self._retries)
            self.block(key, Wait.READY)
        return list(self.ready)

    def unblock(self, key: bytes) -> deque[RecordItem]:
        """Unblock the key. Returns its records, which the caller returns to the front of the queue, in order."""
        self.ready.pop(key, None)
        self.unblocked += 1
        blocked = self.keys.pop(key)
        assert not blocked.due, "its due timers were returned before"
        return blocked.items

    def set_aside(self, key: bytes, receipt: DeliveryReceipt, index: int) -> None:
        """Append a record to the work of its blocked key, before later ones of its delivery."""
        items = self.keys[key].items
        place = len(items)
        while place and items[place - 1].receipt is receipt and items[place - 1].record > index:
            place -= 1
        items.insert(place, RecordItem(receipt, index))
        self._intake.set_aside(receipt, index)

    def put_back(self, blocked: BlockedKey, items: Sequence[RecordItem]) -> None:
        """Prepend records that ran and were undone to the work of their blocked key."""
        blocked.items.extendleft(reversed(items))
        for receipt, index in items:
            self._intake.set_aside(receipt, index)

    def is_done(self, receipt: DeliveryReceipt, until: int) -> bool:
        """Whether a delivery's records up to ``until`` are all committed, or blocked by a failed or running hook."""
        if receipt.held > until:
            return True  # the rest runs when there is room
        if receipt.open != len(receipt.blocked):
            return False
        keys = receipt.delivery.keys
        waits = (self.keys.get(keys[index]) for index in receipt.blocked)
        return all(one is not None and (one.failing is not None or one.wait is Wait.HOOK) for one in waits)
