"""Compiled cells are unknown to the garbage collector, so no value may lead back to them (section 8.3)."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest

import millwheel as mw
from millwheel.sdk.scope import StateCell
from millwheel.worker.interval.cache.cells import CellCache
from tests.worker.interval.driver import IntervalDriver


class Visits(mw.GrowingState):
    count: int = 0
    pages: mw.ListState[str]
    by_day: mw.MapState[int, str]


class Keeps(mw.Computation[tuple[str, str], Visits]):
    """Keeps what its key got in collections, and reads the oldest."""

    def process_record(self, ctx: mw.Context[Visits], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state.count += 1
        ctx.state.pages.append(record.value[1])
        ctx.state.by_day[ctx.state.count] = record.value[1]
        ctx.produce("out", ctx.state.pages[0])


def _reached(value: Any) -> list[Any]:
    """All objects to which references lead from ``value``, but for classes and what modules have."""
    found, ahead = {id(value): value}, [value]
    while ahead:
        last = ahead.pop()
        for one in last.__closure__ or () if isinstance(last, FunctionType) else gc.get_referents(last):
            if id(one) not in found and not isinstance(one, type | ModuleType | BuiltinFunctionType):
                found[id(one)] = one
                ahead.append(one)
    return list(found.values())


@pytest.mark.guarantee("G13", section="4.4")
def test_no_growing_state_leads_to_cells() -> None:
    """With many elements, it has pages in cells of their own."""
    driver = IntervalDriver(Keeps())
    for number in range(20):
        driver.deliver(*(("k", "x" * 100, 100 * number + one) for one in range(50)))
        driver.commit_all()
    cells = driver.state.cells
    values = [cell.value for _, cell in cells.items()]
    assert cells.pages > 1
    assert any(isinstance(value, Visits) for value in values)
    for value in values:
        assert not [one for one in _reached(value) if isinstance(one, StateCell | CellCache)]
