"""An argument's kind follows from the type that its annotation means, however the annotation is written."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional, TypeAlias, TypeVar, Union

import pytest

import millwheel as mw
from millwheel import windows
from millwheel.agg.reading import Of
from millwheel.model.time import TimeDomain
from millwheel.streams.argument_kinds import argument_kinds
from millwheel.windows.assigners import Assigner, SessionWindows
from tests.streams.test_checked import streams

T = TypeVar("T")
TUMBLING = windows.tumbling(mw.hours(1))
Number: TypeAlias = int
Function: TypeAlias = Callable[[T], Any]


def half(value: int) -> int:
    return value // 2


NAMES: dict[str, Any] = {
    "Annotated": Annotated, "Any": Any, "Assigner": Assigner, "Callable": Callable, "Function": Function,
    "Number": Number, "Of": Of, "Optional": Optional, "Sequence": Sequence, "SessionWindows": SessionWindows,
    "T": T, "TimeDomain": TimeDomain,
    "Union": Union, "typing": typing,
}  # fmt: skip
CASES: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
    ("int", (3,), ("3", None, True)),
    (int, (3,), ("3", None)),
    ("Number | None", (3, None), ("3",)),
    ("None | int", (3, None), ("3",)),
    ("Optional[int]", (3, None), ("3",)),
    ("typing.Optional[Number]", (3, None), ("3",)),
    ("Union[int, str]", (3, "a"), (None, half)),
    ("Annotated[int, 'records']", (3,), ("3",)),
    ("Callable[[T], Any] | str", (half, "field"), (3, None)),
    ("Function[int] | None", (half, None), ("field",)),
    ("Callable[[T], list[str | None]]", (half,), (None, "field")),
    ("Callable", (half,), (3,)),
    ("Of", (half, "field", None), (3,)),
    ("TimeDomain", (TimeDomain.EVENT_TIME,), ("wall",)),
    ("Assigner | SessionWindows", (TUMBLING, windows.session(mw.hours(1))), (mw.hours(1), None)),
    ("int | Sequence[int]", (3, [3], "not checked here"), ()),
    ("type[T] | None", (int, None, 3), ()),
    ("OnlyForCheckers | int", (3, "3"), ()),
    ("str | type[str]", ("a", 3), ()),
]


@pytest.mark.parametrize(("annotation", "right", "wrong"), CASES)
def test_the_kind_is_that_of_the_type(annotation: Any, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    kind = argument_kinds({"it": annotation}, NAMES).get("it")
    assert (kind is None) == (not wrong)
    if kind is not None:
        assert [kind.fits(value) for value in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)


def test_the_words_say_each_kind_once() -> None:
    found = argument_kinds({"a": "Of", "b": "str | Callable[[int], int] | None", "c": "int | bool"}, NAMES)
    assert {name: kind.words for name, kind in found.items()} == {
        "a": "a field or a function", "b": "a name or a function", "c": "a whole number or True or False",
    }  # fmt: skip


def test_every_steps_name_is_checked() -> None:
    """Each module has the names of its annotations when a step is called."""
    tried = 0
    for one in streams():
        for method in (getattr(type(one), name) for name in dir(type(one)) if not name.startswith("_")):
            step = getattr(method, "__wrapped__", None)
            if step is not None and "name" in step.__annotations__:
                tried += 1
                assert "name" in argument_kinds(step.__annotations__, step.__globals__)
    assert tried > 20
