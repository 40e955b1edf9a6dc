"""The benchmark of state that grows runs to its end, on a server that is killed on the way."""

from __future__ import annotations

import pytest

from bench.growing.__main__ import served_by
from bench.growing.program import KINDS
from bench.growing.served import large, single_elements


@pytest.mark.timeout(240)
async def test_single_elements_and_a_large_key_are_measured() -> None:
    """It raises if a hook fails, or a record of the large key is not ACKed after the kill."""
    async with served_by(on_cassandra=False) as served:
        for kind in KINDS:
            found = [cost async for cost in single_elements(served, kind, [10, 30], 5, rest=0)]
            assert [cost.elements for cost in found] == [10, 30]
        key = await large(served, 1, lambda _: None, rest=0)
    assert key.elements == 2_000
    assert key.serving >= key.started > 0
    assert [len(reads) for reads in key.reads] == [7, 7]
