"""A pytest plugin that makes each test fail in its middle. What the test has opened must not harm another test.

``python -m pytest -p tests.cut_short --cut-short SEED PATH`` raises an exception in each test, at a line that SEED
draws. A test that ends by that exception counts as an expected failure. Every other failure is an error: the teardown
of the test's fixtures failed, or the test disturbed a later one.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Generator
from random import Random
from types import CodeType, FrameType
from typing import Any

import pytest


class CutShortError(Exception):
    """The test was cut short."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cut-short", metavar="SEED", help="have each test fail at a line that SEED draws")


def _line(code: CodeType, chance: Random) -> int:
    """A line of the function's body, after its first statement."""
    lines = sorted({line for _, line in dis.findlinestarts(code) if line is not None and line > code.co_firstlineno})
    return chance.choice(lines[1:] or lines or [code.co_firstlineno])


def _raises_at(code: CodeType, line: int) -> Callable[[FrameType, str, Any], Any]:
    def within(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno >= line:
            sys.settrace(None)
            raise CutShortError(f"line {frame.f_lineno}")
        return within

    return lambda frame, _event, _argument: within if frame.f_code is code else None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Trace the test itself, and not the functions that it calls."""
    seed = pyfuncitem.config.getoption("--cut-short")
    if seed is None or hasattr(pyfuncitem.obj, "hypothesis"):
        return (yield)
    code = inspect.unwrap(pyfuncitem.obj).__code__
    sys.settrace(_raises_at(code, _line(code, Random(f"{seed} {pyfuncitem.nodeid}"))))
    try:
        return (yield)
    finally:
        sys.settrace(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a test that was cut short as an expected failure."""
    report = yield
    if call.excinfo is not None and _is_ours(call.excinfo.value):
        report.outcome, report.wasxfail = "skipped", "cut short"
    return report


def _is_ours(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_ours, error.exceptions))
    return isinstance(error, CutShortError)
