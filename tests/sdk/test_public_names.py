"""What ``import millwheel`` offers is a promise: names and signatures change only with this test's record of them.

After a change on purpose, write the record again: ``python -m tests.sdk.test_public_names``.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NewType

import millwheel as mw

RECORD = Path(__file__).with_name("public_names.txt")
COLLECTIONS = (mw.CounterState, mw.ExpiringMapState, mw.ListState, mw.MapState, mw.OrderedState, mw.SetState)
MADE_BY_THE_SYSTEM = (mw.BatchContext, mw.Context, mw.Record, mw.RecordBatch, *COLLECTIONS)


def describe(name: str) -> Iterator[str]:
    """One public name, as lines."""
    value = getattr(mw, name)
    if isinstance(value, NewType):
        yield f"{name} = NewType({value.__supertype__.__name__})"
    elif isinstance(value, type):
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        yield from (f"    {line}" for line in members(value))
    elif inspect.ismodule(value):
        yield f"module {name}: {', '.join(value.__all__)}"
    elif inspect.isfunction(value):
        yield f"def {name}{inspect.signature(value)}"
    else:
        yield f"{name}: {type(value).__name__} = {value!r}"


def members(cls: type) -> Iterator[str]:
    """The constructor, and public members that the class or a base of MillWheel defines."""
    if cls not in MADE_BY_THE_SYSTEM and not issubclass(cls, Exception):
        yield f"__init__{inspect.signature(cls)}"
    bases = [base for base in reversed(cls.__mro__) if base.__module__.startswith("millwheel.")]
    for name, value in sorted({name: value for base in bases for name, value in vars(base).items()}.items()):
        if name.startswith("_"):
            continue
        function: Any = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(function):
            yield f"{name}{inspect.signature(function)}"
        elif isinstance(value, property):
            yield f"{name}: property"
        else:
            yield f"{name}: attribute"


def everything() -> str:
    """The whole public interface."""
    return "\n".join(line for name in mw.__all__ for line in describe(name)) + "\n"


def test_the_public_names_and_their_signatures_are_as_promised() -> None:
    assert everything() == RECORD.read_text()


def test_the_public_names_are_sorted_documented_and_all_there() -> None:
    assert mw.__all__ == sorted(mw.__all__, key=_order)
    for name in mw.__all__:
        value = getattr(mw, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert (value.__doc__ or "").strip(), f"{name} has no docstring"


def _order(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_nothing_else_is_public() -> None:
    modules = {name for name, value in vars(mw).items() if inspect.ismodule(value)}
    public = {name for name in vars(mw) if not name.startswith("_")}
    assert public - modules == set(mw.__all__) - modules


def test_importing_the_interface_imports_no_role_server_or_store() -> None:
    program = "import sys, millwheel; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("grpc", "rocksdict", "uvloop", "asyncio", "millwheel.worker", "millwheel.master", "millwheel.store")
    assert [name for name in loaded if name.startswith(heavy)] == []


if __name__ == "__main__":
    RECORD.write_text(everything())
