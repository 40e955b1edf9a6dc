"""Code packages are removed when no topology uses them, and can come back (G3, G13; 4.1, 7.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from millwheel.master.packages import CHUNK_BYTES, Packages
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import RequestError
from millwheel.store.contract import StateRow, StoreUnavailableError
from millwheel.store.memory import MemoryStore
from tests.stored_rows import rows_of

OLD, NEW = b"old" * CHUNK_BYTES, b"new"
PACKAGES = IncarnationId("packages")


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def read(packages: Packages, content: bytes) -> bytes:
    return b"".join([chunk async for chunk in packages.get(digest_of(content))])


class Breaking(MemoryStore):
    """A store that fails after some writes."""

    writes = 1 << 30

    async def write_states(self, computation: str, journal: str, sequencer: int, rows: Sequence[StateRow]) -> None:
        if self.writes == 0:
            raise StoreUnavailableError("it stops here")
        self.writes -= 1
        await super().write_states(IncarnationId(computation), journal, sequencer, rows)


@pytest.mark.guarantee("G13", section="4.1")
async def test_what_no_topology_names_goes_and_may_be_uploaded_again() -> None:
    store = MemoryStore()
    packages = Packages(store, 5)
    for content in (OLD, NEW):
        assert await packages.put(digest_of(content), content)
    assert await packages.collect({digest_of(OLD)}, idle=60) == [], "it was asked for a moment ago"
    assert await packages.collect({digest_of(NEW)}, idle=0) == [digest_of(OLD)]
    assert {row.key[:64].decode() for row in rows_of(store, PACKAGES)} == {digest_of(NEW)}
    assert not await packages.has(digest_of(OLD))
    with pytest.raises(RequestError, match="there is no code package"):
        await read(packages, OLD)
    for successor in (packages, Packages(store, 6)):
        await successor.put(digest_of(OLD), OLD)
        assert await read(successor, OLD) == OLD
    assert await Packages(store, 7).collect(set(), idle=60) == [], "its time begins with the term"


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("writes", range(5))
async def test_a_successor_ends_a_deposed_masters_unfinished_upload(writes: int) -> None:
    store = Breaking()
    deposed = Packages(store, 5)
    await deposed.put(digest_of(OLD), OLD)
    store.writes = writes
    broken = writes < 1 + len(OLD) // CHUNK_BYTES
    if broken:
        with pytest.raises(StoreUnavailableError):
            await deposed.collect(set(), idle=0)
    else:
        assert await deposed.collect(set(), idle=0)
    store.writes = 1 << 30
    late = [StateRow(row.key, 3, b"") for row in rows_of(store, PACKAGES)]
    late = late or [StateRow(digest_of(OLD).encode(), 3, b"")]
    successor = Packages(store, 6)
    assert not await successor.has(digest_of(OLD)), "whether it is here is not said before it is certain"
    assert await successor.put(digest_of(OLD), OLD)
    await store.write_states("packages", "packages", 5, late)
    assert await read(successor, OLD) == OLD
    with pytest.raises(RequestError, match="no longer leads"):
        await deposed.put(digest_of(NEW), NEW)
