"""What a key function consists of, as far as two versions of a program can be compared by it.

An update must not give another key to a record that is sent again (``master/updating.py``, G1). A function with a name
of its own is known by this name: a user renames it if it returns other keys. All lambdas have one name. So a lambda is
known by its code, with the constants and the module's plain data that this code reads.

Data that a function was made with belongs to both kinds: defaults, a closure's variables and the arguments of
``functools.partial``. What a function calls is not followed, and an object's attributes are not read.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import operator
import re
import sys
from collections.abc import Iterable
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import msgspec

from millwheel.sdk.expressions import Expression

__all__ = ["code_digest", "may_change_its_argument"]

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_COLLECTIONS: Final = (tuple, list, set, frozenset)
_GETTERS: Final = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_CHANGING: Final = {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR", "CALL_FUNCTION_EX"}
"""Instructions that may change an object which the code has not made."""
_HARMLESS: Final = (
    abs,
    bool,
    bytes,
    dict,
    float,
    frozenset,
    int,
    isinstance,
    len,
    list,
    max,
    min,
    round,
    set,
    str,
    tuple,
)
"""Functions that change no argument."""
_CODE_OF_ONE_PYTHON: Final = f"{sys.implementation.cache_tag}-{sys.flags.optimize}"


def code_digest(parts: Iterable[Any]) -> str:
    """A digest of functions and other values that determine a key.

    Returns:
        The kind of Python, a colon and the digest. Only digests of one kind of Python can be compared, because each
        compiles the same text to other code.
    """
    described = _Describer().describe(tuple(parts))
    return f"{_CODE_OF_ONE_PYTHON}:{hashlib.sha256(described.encode()).hexdigest()[:32]}"


def may_change_its_argument(function: Any) -> bool:
    """Whether a function may change the value that it gets.

    False only where its code shows that it does not. The code sets no attribute or item, and calls only structs and
    functions such as ``len``. For example, ``lambda bid: Price(bid.auction, bid.price * 2)``. A property or an operator
    that changes its object is not noticed.
    """
    if isinstance(function, operator.attrgetter | operator.itemgetter):
        return False
    if not isinstance(function, FunctionType):
        return not _is_harmless(function)
    if any(isinstance(each, CodeType) for each in function.__code__.co_consts):
        return True  # a function in it may be called by another one
    code = list(dis.get_instructions(function.__code__))
    if any(each.opname in _CHANGING or (each.opname == "BINARY_OP" and each.argrepr.endswith("=")) for each in code):
        return True
    calls = sum(each.opname in ("CALL", "CALL_KW") for each in code)
    # The lowest bit: the name is loaded to be called.
    called = [each.argval for each in code if each.opname == "LOAD_GLOBAL" and (each.arg or 0) & 1]
    found = function.__globals__
    return calls != len(called) or not all(
        _is_harmless(found.get(name, getattr(builtins, name, None))) for name in called
    )


def _is_harmless(called: Any) -> bool:
    """Whether a call changes no argument. A struct with a ``__post_init__`` may call anything."""
    if isinstance(called, type) and issubclass(called, msgspec.Struct):
        return not hasattr(called, "__post_init__")
    return any(called is each for each in _HARMLESS)


class _Describer:
    """Describes values as text. Equal values have equal texts in every process."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        """The values that are being described, by id(): a recursive function is in its own closure."""

    def describe(self, value: Any) -> str:
        if isinstance(value, _PLAIN):
            return f"{type(value).__qualname__} {value!r}"
        if id(value) in self._open:
            return "again"
        self._open.add(id(value))
        try:
            return self._compound(value)
        finally:
            self._open.discard(id(value))

    def _compound(self, value: Any) -> str:
        if isinstance(value, tuple | list):
            return self._list("list", value)
        if isinstance(value, set | frozenset):
            return f"set({', '.join(sorted(map(self.describe, value)))})"
        if isinstance(value, dict):  # other mappings, such as os.environ, may be views of something large
            return f"map({', '.join(sorted(map(self.describe, value.items())))})"
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self._list("method", (value.__self__, value.__func__))
        if isinstance(value, partial):
            return self._list("partial", (value.func, value.args, value.keywords))
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, (*_GETTERS, Expression)):
            return repr(value)
        if isinstance(value, Enum):
            return self._list(type(value).__qualname__, (value.name, value.value))
        if isinstance(value, re.Pattern):
            return self._list("pattern", (value.pattern, value.flags))
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # such as functools.cache
            return self._list(type(value).__qualname__, (wrapped,))
        return str(getattr(value, "__qualname__", type(value).__qualname__))

    def _list(self, kind: str, values: Iterable[Any]) -> str:
        return f"{kind}({', '.join(map(self.describe, values))})"

    def _function(self, function: FunctionType) -> str:
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        made_with = self.describe((function.__defaults__, function.__kwdefaults__, cells))
        # MillWheel's own code keeps its keys from version to version.
        own = (function.__module__ or "").partition(".")[0] == "millwheel"
        if own or function.__code__.co_name != "<lambda>":
            return f"{function.__qualname__} {made_with}"
        return f"{self.describe(function.__code__)} {self._globals(function)} {made_with}"

    def _cell(self, cell: Any) -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # a variable without a value
            return ...

    def _globals(self, function: FunctionType) -> str:
        """The plain data of the module that the function's code reads by name."""
        read = {name: function.__globals__.get(name) for name in _global_names(function.__code__)}
        return self.describe({name: value for name, value in read.items() if _is_plain(value)})

    def _code(self, code: CodeType) -> str:
        """The instructions, names and constants. Not the places in the file, and not the names of local variables."""
        return self._list("code", (code.co_code, code.co_names, code.co_consts, code.co_argcount))


def _is_plain(value: Any) -> bool:
    """Whether a value is plain data, or a collection of plain data."""
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    return isinstance(value, _PLAIN) or (isinstance(value, _COLLECTIONS) and all(map(_is_plain, value)))


def _global_names(code: CodeType) -> set[str]:
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
