"""What lies in the tables: damage is named, deleted entries are never read through, rows keep their order."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.cassandra.journals import MAX_VALUE_BYTES
from millwheel.store.cassandra.parts import CHUNK_BYTES
from millwheel.store.cassandra.states import EMPTY_SECONDS, bucket_of
from millwheel.store.contract import Append, CorruptValueError, PartId, StateRow, StoreError


async def owned(store: CassandraStore, journal: str, commits: int = 0) -> None:
    await store.create_journal(journal)
    await store.fence(journal, 1)
    for commit in range(1, commits + 1):
        await store.append(journal, Append(1, commit, 0, (), b"entry %d" % commit))


async def test_damaged_values_are_named_never_served(
    settings: CassandraSettings, store: CassandraStore, driver: Any, name: str
) -> None:
    await owned(store, name, commits=1)
    part = PartId("timers", 1, 1)
    await store.write_part(name, part, b"blob")
    await store.append(name, Append(1, 2, 1, (part,), b"entry 2"))
    await store.write_states(IncarnationId(name), name, 1, [StateRow(b"k", 2, b"state")])
    keyspace = settings.keyspace
    driver.execute(f"UPDATE {keyspace}.journals SET value = 0x01020304050607 WHERE journal = %s AND entry = 2", (name,))
    driver.execute(
        f"UPDATE {keyspace}.parts SET value = 0x0102 WHERE journal = %s AND name = 'timers' "
        "AND sequencer = 1 AND commit = 1 AND chunk = 0",
        (name,),
    )
    driver.execute(
        f"UPDATE {keyspace}.states SET value = 0x09 WHERE incarnation = %s AND bucket = %s AND key = %s",
        (name, bucket_of(b"k", settings.state_buckets), b"k"),
    )
    with pytest.raises(CorruptValueError, match=f"entry 2 of journal {name}"):
        await store.read_entries(name, 1, 2)
    with pytest.raises(CorruptValueError, match=f"part 'timers' of journal {name}"):
        await store.read_parts(name, [part])
    with pytest.raises(CorruptValueError, match=f"'k' of incarnation {name}"):
        await store.read_states(IncarnationId(name), [b"k"])
    driver.execute(f"UPDATE {keyspace}.journals SET parts = 0x00 WHERE journal = %s", (name,))
    with pytest.raises(CorruptValueError, match=f"part list of journal {name}"):
        await store.fence(name, 2)


async def test_a_large_part_is_stored_in_chunks_and_a_lost_one_noticed(
    settings: CassandraSettings, store: CassandraStore, driver: Any, name: str
) -> None:
    await store.create_journal(name)
    part, blob = PartId("p", 1, 1), bytes(range(256)) * (10 * CHUNK_BYTES // 1024)
    await store.write_part(name, part, blob)
    assert await store.read_parts(name, [part]) == [blob]
    assert await store.list_parts(name) == [part]
    driver.execute(
        f"DELETE FROM {settings.keyspace}.parts WHERE journal = %s AND name = 'p' "
        "AND sequencer = 1 AND commit = 1 AND chunk = 1",
        (name,),
    )
    with pytest.raises(CorruptValueError):
        await store.read_parts(name, [part])
    await store.delete_parts(name, [part])
    assert await store.list_parts(name) == []


async def test_what_cassandra_would_not_take_is_refused_by_name(store: CassandraStore, name: str) -> None:
    await owned(store, name)
    with pytest.raises(StoreError, match=f"entry 1 of journal {name}"):
        await store.append(name, Append(1, 1, 0, (), bytes(MAX_VALUE_BYTES)))
    with pytest.raises(StoreError, match="state of key b'large'"):
        await store.write_states(IncarnationId(name), name, 1, [StateRow(b"large", 0, bytes(MAX_VALUE_BYTES))])
    await store.append(name, Append(1, 1, 0, (), bytes(MAX_VALUE_BYTES - 100)))
    assert len((await store.read_entries(name, 1, 1))[0]) == MAX_VALUE_BYTES - 100


@pytest.mark.parametrize("request_of", ["append", "head", "entries"])
async def test_nothing_is_read_through_the_entries_that_were_deleted(
    settings: CassandraSettings, store: CassandraStore, driver: Any, name: str, request_of: str
) -> None:
    await owned(store, name, commits=150)
    await store.append(name, Append(1, 151, 149, (), b"last"))
    for below in (50, 100, 150):
        await store.delete_entries(name, below)
    keyspace = settings.keyspace
    requests = {
        "append": f"UPDATE {keyspace}.journals SET commit = 152, truncation_point = 149, value = 0x00 "
        "WHERE journal = %s AND entry = 152 IF sequencer = 1 AND commit = 151 AND truncation_point <= 149",
        "head": f"SELECT commit, entry FROM {keyspace}.journals WHERE journal = %s AND entry = -1",
        "entries": f"SELECT value FROM {keyspace}.journals WHERE journal = %s AND entry >= 150 AND entry <= 151",
    }
    answer = driver.execute(requests[request_of], (name,), trace=True)
    events = [event.description for event in answer.get_query_trace(30).events]
    read = [re.search(r"Read (\d+) live rows.* and (\d+) tombstone", event) for event in events]
    counts = [(int(found[1]), int(found[2])) for found in read if found]
    assert counts, events
    assert max(live for live, _ in counts) <= 2
    assert max(tombstones for _, tombstones in counts) <= 2


async def test_an_emptied_row_stands_for_days_and_then_goes(
    settings: CassandraSettings, store: CassandraStore, driver: Any, name: str
) -> None:
    await store.write_states(IncarnationId(name), name, 1, [StateRow(b"k", 5, b"state"), StateRow(b"l", 5, b"state")])
    await store.write_states(IncarnationId(name), name, 1, [StateRow(b"k", 6, b"")])
    rows = driver.execute(
        f"SELECT key, TTL(value), WRITETIME(value) FROM {settings.keyspace}.states WHERE incarnation = %s "
        "AND bucket IN (0, 1, 2, 3)",
        (name,),
    )
    found = {key: (ttl, written) for key, ttl, written in rows}
    assert found[b"l"] == (None, 5)
    assert EMPTY_SECONDS - 60 < found[b"k"][0] <= EMPTY_SECONDS
    assert found[b"k"][1] == 6


def test_buckets_are_a_stable_and_even_hash() -> None:
    assert [bucket_of(key, 64) for key in (b"", b"a", b"key-1", b"\xff\x00")] == [0, 3, 58, 13]
    sizes = Counter(bucket_of(b"key-%d" % number, 64) for number in range(64_000))
    assert len(sizes) == 64
    assert max(sizes.values()) < 1_300
