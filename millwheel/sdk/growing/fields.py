"""The class of a growing state: plain fields, and collections that are stored in pages."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, cast

import msgspec

from millwheel.sdk.codecs import codec_for
from millwheel.sdk.defaults import default_of
from millwheel.sdk.error_texts import bare_message
from millwheel.sdk.errors import UnsupportedTypeError
from millwheel.sdk.growing.collections import Collection, CounterState, ListState, MapState, OrderedState, SetState
from millwheel.sdk.growing.elements import Elements, element_codec, key_codec
from millwheel.sdk.growing.expiring import ExpiringMapState
from millwheel.sdk.growing.migrated import Conversion, Dropped, Migrated, conversions_of, in_forms
from millwheel.sdk.growing.pages import Pages
from millwheel.sdk.growing.tree import PageTree
from millwheel.sdk.typeinfo import annotated_fields, supertype

__all__ = [
    "COLLECTIONS",
    "CollectionField",
    "GrowingState",
    "StatePlan",
    "is_growing",
    "plan_of",
    "set_collections",
    "set_plain",
]

_PLAN: Final = "_millwheel_plan"
COLLECTIONS: Final[Mapping[type, str]] = {
    ListState: "growing list",
    MapState: "growing map",
    ExpiringMapState: "growing map of elements that end",
    SetState: "growing set",
    CounterState: "growing counter",
    OrderedState: "growing list by time",
}
"""The collections, with their names in a state's schema."""


class GrowingState:
    """The base class of states that grow: fields like those of a dataclass, and collections of any size.

    Collections are :class:`ListState`, :class:`MapState`, :class:`SetState`, :class:`OrderedState`,
    :class:`CounterState` and :class:`ExpiringMapState`. They are stored in pages of 4 KiB. A hook reads and writes only
    the pages that it uses, so a key may have gigabytes. The other fields are together the *plain part*, which is read
    and written as a whole. Every field begins with its default: that of the class, else of its type. The class is
    constructed without arguments.

    If a hook needs a page that is not in memory, it is undone, and runs again when the page has been read. A hook may
    read about half of the interval's cache. Larger collections are processed in slices, in a chain of timers. Hooks of
    a computation with such a state are no coroutines.

    Example:
        >>> import millwheel as mw
        >>> class Account(mw.GrowingState):
        ...     balance: int = 0
        ...     payments: mw.ListState[int]
        >>> class Accounts(mw.Computation[int, Account]):
        ...     def process_record(self, ctx: mw.Context[Account], record: mw.Record[int]) -> None:
        ...         ctx.state.balance += record.value
        ...         ctx.state.payments.append(record.value, keep=1_000)
        >>> state = Account()
        >>> state.payments.append(5)
        >>> state
        Account(balance=0, payments=ListState(5))
    """

    _names: ClassVar[Mapping[str, Any]] = {}
    """Names that the annotations of a class within a function may use."""

    def __init_subclass__(cls) -> None:
        names, module = sys._getframe(1).f_locals, sys.modules.get(cls.__module__)
        cls._names = {} if module is not None and names is vars(module) else names
        super().__init_subclass__()

    def __init__(self) -> None:
        plan = plan_of(type(self))
        self._pages: Pages = Pages()
        self._collections: Mapping[str, Collection]
        self._deleted: bytes | None = None
        """The encoding of the plain part of a state that was deleted. The state counts as none while that is equal."""
        set_plain(self, plan.plain())
        set_collections(self, {name: field.open(PageTree(self._pages)) for name, field in plan.collections.items()})

    @classmethod
    def _read_plain(cls, data: bytes) -> GrowingState:
        """A state with stored plain fields, and empty collections. ValueDecodeError."""
        state = cls()
        set_plain(state, codec_for(plan_of(cls).plain, f"the plain fields of {cls.__name__}").decode(data))
        return state

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in plan_of(type(self)).names)
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True, slots=True)
class CollectionField:
    """A field that is a collection."""

    kind: type[Collection]
    elements: Elements[Any]
    keys: Elements[Any] | None
    conversions: tuple[Conversion, ...] = ()
    """The functions that convert stored elements, in order."""

    def open(self, tree: PageTree, start: int = 0, next_: int = 0) -> Collection:
        """The collection with the elements of a tree."""
        return self.kind(self.elements, self.keys, tree, start, next_)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The fields of a growing state."""

    names: tuple[str, ...]
    plain: type[msgspec.Struct]
    """The fields that are no collections. It is constructed without arguments."""
    collections: Mapping[str, CollectionField]
    dropped: frozenset[str]
    """The names of collections that earlier versions had. They are in none of the others."""


def is_growing(annotation: Any) -> bool:
    """Whether a type is a class of growing states."""
    plain = supertype(annotation)
    return isinstance(plain, type) and issubclass(plain, GrowingState)


def plan_of(state: type[GrowingState]) -> StatePlan:
    """The fields of a class of growing states.

    Raises:
        UnsupportedTypeError: A field cannot be stored. The error names it.
    """
    plan = state.__dict__.get(_PLAN)
    if plan is None:
        plan = _made_plan(state)
        setattr(state, _PLAN, plan)
    return cast("StatePlan", plan)


def _made_plan(state: type[GrowingState]) -> StatePlan:
    if state.__init__ is not GrowingState.__init__:
        raise UnsupportedTypeError(f"{state.__name__} defines __init__: give its fields defaults in the class instead")
    plain: list[tuple[str, Any, Any]] = []
    collections: dict[str, CollectionField] = {}
    dropped: list[str] = []
    hints = _hints(state)
    for name, hint in hints.items():
        origin = typing.get_origin(hint) or hint
        where = f"{state.__name__}.{name}"
        if name.startswith("_"):
            raise UnsupportedTypeError(f"{where}: a field of a state does not begin with an underscore")
        given = getattr(state, name, msgspec.NODEFAULT)
        if hint is Dropped:
            if name in vars(state):
                raise UnsupportedTypeError(f"{where}: a dropped field takes no default")
            dropped.append(name)
        elif origin in COLLECTIONS:
            collections[name] = _converting(_collection(origin, typing.get_args(hint), where), given, where)
        elif isinstance(given, Migrated):
            raise UnsupportedTypeError(
                f"{where}: migrated(...) converts elements of collections: for other fields, define migrate in the "
                "computation"
            )
        else:
            plain.append((name, hint, _default(state, name, hint)))
    try:
        made = msgspec.defstruct(state.__name__, plain, module=state.__module__, kw_only=True)
        made()
    except Exception as error:
        raise UnsupportedTypeError(f"{state.__name__}: {bare_message(error)}") from error
    names = tuple(name for name in hints if name not in dropped)
    return StatePlan(names, made, collections, frozenset(dropped))


def _hints(state: type[GrowingState]) -> dict[str, Any]:
    try:
        return annotated_fields(state, state._names)
    except Exception as error:
        raise UnsupportedTypeError(
            f"the fields of {state.__name__} cannot be read ({bare_message(error)}): define the types that it names at "
            "the top level of a module"
        ) from error


def _default(state: type[GrowingState], name: str, hint: Any) -> Any:
    given = getattr(state, name, msgspec.NODEFAULT)
    return msgspec.field(default_factory=default_of(hint)) if given is msgspec.NODEFAULT else given


def _collection(kind: type[Collection], arguments: tuple[Any, ...], where: str) -> CollectionField:
    if not arguments:
        shown = "str, int" if kind in (MapState, ExpiringMapState) else "int"
        raise UnsupportedTypeError(f"{where}: say what is in it, such as {kind.__name__}[{shown}]")
    if kind is SetState:
        return CollectionField(kind, key_codec(arguments[0], where), None)
    if kind in (MapState, ExpiringMapState, CounterState):
        value = int if kind is CounterState else arguments[1]
        return CollectionField(kind, element_codec(value, where), key_codec(arguments[0], where))
    return CollectionField(kind, element_codec(arguments[0], where), None)


def _converting(field: CollectionField, given: Any, where: str) -> CollectionField:
    """A collection whose elements of earlier forms are converted as the class says by its default."""
    if given is not msgspec.NODEFAULT and not isinstance(given, Migrated):
        raise UnsupportedTypeError(f"{where}: a collection begins empty, and takes no default but migrated(...)")
    if field.kind in (SetState, CounterState):
        if given is not msgspec.NODEFAULT:
            raise UnsupportedTypeError(
                f"{where}: migrated(...) converts no keys: they are found by their encodings. Add a field of another "
                "name, and fill it in the hooks"
            )
        return field
    conversions = () if given is msgspec.NODEFAULT else conversions_of(given, field.elements.type, where)
    return replace(field, elements=in_forms(field.elements, conversions, where), conversions=conversions)


def set_collections(state: GrowingState, collections: Mapping[str, Collection]) -> None:
    """Set the fields that are collections.

    Invariant: each field has the collection that was opened for it. With another one, two fields would refer to the
    same pages, and each would change and delete those of the other. A hook can break this, so the codec compares.
    """
    state._collections = collections
    for name, collection in collections.items():
        setattr(state, name, collection)


def set_plain(state: GrowingState, plain: msgspec.Struct) -> None:
    """Set the plain fields of a state."""
    for name in plain.__struct_fields__:
        setattr(state, name, getattr(plain, name))
