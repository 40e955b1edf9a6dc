"""A table that is altered while it is written: the sink stops, says why, and goes on when the table fits again (G1)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from millwheel.connectors import cassandra
from millwheel.connectors.cassandra import CassandraError
from millwheel.connectors.cassandra.writer import TableWriter
from tests.connectors.cassandra.given import KEYSPACE, Row, Shop, is_gone, opened, row_of, until_done, with_writers


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.parametrize(
    ("alter", "back", "why"),
    [
        ("DROP note", "ADD note text", "column note is not there: the table has"),
        ("RENAME item TO thing", "RENAME thing TO item", "its primary key has thing, and the rows do not"),
    ],
    ids=["a column is dropped", "a part of the key is renamed"],
)
def test_a_table_is_altered_and_put_back(shop: Shop, alter: str, back: str, why: str) -> None:
    table = f"{KEYSPACE}.altered_{uuid.uuid4().hex}"
    shop.run(
        f"CREATE TABLE {table} "
        "(test text, shelf int, item text, cents int, note text, PRIMARY KEY ((test, shelf), item))"
    )
    sink = cassandra.sink(table, Row, row=row_of, delete=is_gone, settings=shop.settings())
    first, second = ([shop.sale(item, cents, note=item) for item, cents in some] for some in (
        [("tea", 1), ("pot", 2)], [("tea", 3), ("cup", 4)],
    ))  # fmt: skip

    async def do(writer: TableWriter[Any]) -> None:
        await until_done(lambda: writer.write(shop.batch(1, *first)))
        shop.run(f"ALTER TABLE {table} {alter}")
        with pytest.raises(CassandraError, match=r"refuses record 1 of 2, Sale.*of batch 2 .*Let the table take the"):
            await until_done(lambda: writer.write(shop.batch(2, *second)))
        for _ in range(2):
            with pytest.raises(CassandraError, match=f"do not fit into the table .*{why}"):
                await opened(sink, shop.place())
        shop.run(f"ALTER TABLE {table} {back}")
        again = await opened(sink, shop.place())
        try:
            await until_done(lambda: again.write(shop.batch(2, *second)))
            await until_done(lambda: again.write(shop.batch(3, shop.sale("mug", 5, note="mug"))))
        finally:
            await again.close()

    with_writers(sink, shop.place(), do=do)
    rows = shop.run(f"SELECT item, cents FROM {table} WHERE test = %s ALLOW FILTERING", shop.name)
    assert sorted(rows) == [("cup", 4), ("mug", 5), ("pot", 2), ("tea", 3)]
    notes = shop.run(f"SELECT item, note FROM {table} WHERE test = %s ALLOW FILTERING", shop.name)
    dropped = alter.startswith("DROP")
    assert dict(notes) == {item: None if dropped and item == "pot" else item for item in ("cup", "mug", "pot", "tea")}
    shop.run(f"DROP TABLE {table}")
