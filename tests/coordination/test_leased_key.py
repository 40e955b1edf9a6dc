"""A key under a lease of its own is there while it is renewed. An earlier write never takes it away later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millwheel.coordination.contract import (
    Compare,
    CoordinatorUnavailableError,
    LeaseExpiredError,
    Put,
    TransactionResult,
)
from millwheel.coordination.leased_key import LeasedKey
from tests.coordination.memory import MemoryCoordinator

TTL = 10.0


class Delaying(MemoryCoordinator):
    """The first transaction times out, and is done when ``do_late`` is called."""

    late: Sequence[Put] = ()

    async def transact(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TransactionResult:
        if not self.late:
            self.late = puts
            raise CoordinatorUnavailableError("no answer")
        return await super().transact(compares, puts, deletes)

    async def do_late(self) -> None:
        await super().transact((), self.late)


async def value(coordinator: MemoryCoordinator) -> bytes | None:
    found = await coordinator.get("it")
    return None if found is None else found.value


async def test_a_leased_key_is_there_while_it_is_renewed() -> None:
    now = 0.0
    coordinator = MemoryCoordinator(lambda: now)
    key = LeasedKey(coordinator, "it", TTL)
    await key.write(b"here")
    for _ in range(2):
        now += 9.0
        await key.renew()
        await coordinator.expire_leases()
        assert await value(coordinator) == b"here"
    now = 29.0
    with pytest.raises(LeaseExpiredError):
        await key.renew()
    await coordinator.expire_leases()
    assert await value(coordinator) is None
    await key.write(b"again")
    assert await value(coordinator) == b"again"
    await key.end()
    assert (await value(coordinator), key.written) == (None, False)


async def test_a_late_write_takes_no_leased_key_away() -> None:
    coordinator = Delaying(lambda: 0.0)
    key = LeasedKey(coordinator, "it", TTL)
    with pytest.raises(CoordinatorUnavailableError):
        await key.write(b"first")
    assert not key.written
    await key.write(b"second")
    with pytest.raises(LeaseExpiredError):
        await coordinator.do_late()
    assert await value(coordinator) == b"second"
