"""The stored form of a growing state besides its pages, the *head*: the plain part, and the root of each collection."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from millwheel.sdk.codecs import Codec, StateCodec, codec_for, format_of, state_codec_for
from millwheel.sdk.computation import Computation
from millwheel.sdk.errors import UnsupportedTypeError, ValueDecodeError, ValueEncodeError
from millwheel.sdk.growing.collections import Collection
from millwheel.sdk.growing.fields import GrowingState, is_growing, plan_of, set_collections, set_plain
from millwheel.sdk.growing.nodes import Node
from millwheel.sdk.growing.pages import Garbage, Pages
from millwheel.sdk.growing.tree import PageTree
from millwheel.sdk.migration import StoredState, versioned
from millwheel.sdk.round_trip import Check
from millwheel.sdk.typeinfo import cached_by_type, type_name

__all__ = ["any_state_codec", "growing_problems", "plain_part", "reset", "sizes"]

_FORMAT: Final = 1
_NO_FIELDS: Final = msgspec.msgpack.encode({})
_NO_PLAIN: Final = msgspec.msgpack.encode(None)
"""The plain part of a deleted state whose pages are not all gone yet. It begins with its default again."""


class _TreeHead(msgspec.Struct, array_like=True, frozen=True):
    """One collection: the numbers and the root of its tree."""

    depth: int
    count: int
    blobs: int
    start: int
    next: int
    keys: list[bytes]
    values: list[bytes | int]


class _StateHead(msgspec.Struct, array_like=True, frozen=True):
    """A growing state without its pages. An empty collection is left out."""

    format: int
    plain: msgspec.Raw
    trees: dict[str, _TreeHead]
    following: int
    garbage: list[Garbage]
    version: int = 1
    """The ``state_version`` of the plain part. An element has a form of its own."""


_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_StateHead).decode


def plain_part(encoded: bytes, where: str) -> tuple[int, bytes]:
    """The version and the encoded plain fields of a stored state, for readers that have no class of it.

    A state that was deleted has none of them. Empty bytes: it has no elements either.

    Raises:
        ValueDecodeError: It is no growing state of this format. The error names ``where``.
    """
    head = _read_head(encoded, where)
    if head.format != _FORMAT:
        raise ValueDecodeError(f"{where}, state: it was stored in format {head.format}; this version reads {_FORMAT}")
    plain = bytes(head.plain)
    if plain == _NO_PLAIN:
        plain = _NO_FIELDS if any(tree.count for tree in head.trees.values()) else b""
    return head.version, plain


def _read_head(encoded: bytes, where: str) -> _StateHead:
    try:
        return _decode_head(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueDecodeError(f"{where}, state: no head of a growing state: {error}") from error


def any_state_codec(
    state_type: Any,
    where: str,
    codec: Codec[Any] | None = None,
    version: int = 1,
    migrate: Callable[[StoredState], Any] | None = None,
) -> StateCodec:
    """The codec of a computation's state: of a growing state, or of a state that is one value.

    Args:
        state_type: The type of the state.
        where: The computation's name in errors.
        codec: The user's codec, if there is one.
        version: The version of the state's type.
        migrate: Converts states of earlier versions. None: there are none.

    Raises:
        UnsupportedTypeError: See :func:`state_codec_for`.
    """
    if is_growing(state_type):
        if codec is not None:
            raise UnsupportedTypeError(f"{type_name(state_type)} as a growing state has no state_codec: leave it out")
        return _GrowingCodec(state_type, where, version, migrate).made()
    made = state_codec_for(state_type, where, codec)
    return made if migrate is None else versioned(made, format_of(state_type, codec), version, migrate, where)


def growing_problems(computation: Computation[Any, Any], state_type: Any) -> Iterator[str]:
    """What a computation with this state type must not have, if that is a growing state."""
    if not is_growing(state_type):
        return
    for hook in (computation.process_record, computation.process_timer):
        if inspect.iscoroutinefunction(hook):
            yield (
                f"its state {type_name(state_type)} is a growing one, and {hook.__name__} is async: a hook that needs "
                "a page is undone and runs again, and a coroutine cannot. Await the service in a computation before it"
            )


class _GrowingCodec:
    """The codec of one class of growing states."""

    def __init__(
        self, state: type[GrowingState], where: str, version: int, migrate: Callable[[StoredState], Any] | None
    ) -> None:
        self._state = state
        self._version = version
        self._migrate = migrate
        self._where = where
        self._plan = plan_of(state)
        self._plain = state_codec_for(self._plan.plain, where)
        self._attributes = {"_pages", "_collections", "_deleted", *self._plan.names}

    def made(self) -> StateCodec:
        """The codec as the workers use it."""
        check: Check | None = None if self._plain.check is None else self._check
        name = type_name(self._state)
        return StateCodec(
            name, self._state, self._encode, check, None, self._decode, takes_none=False, present=self._present
        )

    def _encode(self, state: Any) -> bytes:
        if state.__class__ is not self._state:
            raise ValueEncodeError(f"{self._where}, state is a {type_name(self._state)}, not {type_name(type(state))}")
        plain, pages = self._plain.encode(self._plain_of(state)), state._pages
        trees: dict[str, _TreeHead] = {}
        for name, collection in state._collections.items():
            if (given := getattr(state, name)) is not collection:
                raise ValueEncodeError(
                    f"{self._where}, state: field {name!r} is a collection, and was replaced by {_brief(given)}: "
                    f"change its elements, as by `state.{name}.clear()`"
                )
            tree = collection._tree
            if tree.count:
                start, next_ = collection._start, collection._next
                trees[name] = _TreeHead(
                    tree.depth, tree.count, tree.blobs, start, next_, tree.root.keys, tree.root.values
                )
        deleted = not trees and plain == state._deleted
        if not deleted:
            state._deleted = None
        if (deleted or (not trees and plain == self._plain.default)) and not pages.garbage:
            return b""
        plain = _NO_PLAIN if deleted else plain
        return _encode_head(
            _StateHead(_FORMAT, msgspec.Raw(plain), trees, pages.following, pages.garbage, self._version)
        )

    def _plain_of(self, state: Any) -> msgspec.Struct:
        if vars(state).keys() != self._attributes:
            strange = min(vars(state).keys() ^ self._attributes)
            raise ValueEncodeError(
                f"{self._where}, state: field {strange!r} of {type_name(self._state)} was deleted, or was not "
                f"declared: its fields are {', '.join(self._plan.names)}"
            )
        return self._plan.plain(**{name: getattr(state, name) for name in self._plan.plain.__struct_fields__})

    def _check(self, state: Any, encoded: bytes) -> None:
        assert self._plain.check is not None
        plain = self._plain_of(state)
        self._plain.check(plain, self._plain.encode(plain))

    def _decode(self, encoded: bytes) -> Any:
        head = _read_head(encoded, self._where)
        dropped = head.trees.keys() - self._plan.collections.keys()
        if head.format != _FORMAT or dropped - self._plan.dropped:
            raise ValueDecodeError(
                f"{self._where}, state: it was stored in format {head.format} with collections {sorted(head.trees)}: "
                f"{type_name(self._state)} has {sorted(self._plan.collections)}"
            )
        state = self._state.__new__(self._state)
        state._pages = pages = Pages(head.following, head.garbage)
        plain = bytes(head.plain)
        if plain == _NO_PLAIN:
            _begin(state)
        else:
            state._deleted = None
            set_plain(state, self._plain.decode(plain) if head.version == self._version else self._converted(head))
        collections: dict[str, Collection] = {}
        for name, field in self._plan.collections.items():
            stored = head.trees.get(name)
            if stored is None:
                collections[name] = field.open(PageTree(pages))
            else:
                collections[name] = field.open(_tree(pages, stored), stored.start, stored.next)
        set_collections(state, collections)
        for name in sorted(dropped):
            _tree(pages, head.trees[name]).clear()
        return state

    def _converted(self, head: _StateHead) -> msgspec.Struct:
        """The plain part of a state that was stored by another version of the code."""
        if head.version > self._version or self._migrate is None:
            raise ValueDecodeError(
                f"{self._where}: its state is of version {head.version}, and this code knows {self._version}: "
                "run newer code"
            )
        state = self._migrate(StoredState(head.version, bytes(head.plain)))
        if state.__class__ is not self._state:
            raise ValueDecodeError(
                f"{self._where}: migrate returned {_brief(state)} for a state of version {head.version}: return a "
                f"{type_name(self._state)} with the plain fields; its collections keep what is stored"
            )
        if filled := [name for name, one in state._collections.items() if len(one)]:
            raise ValueDecodeError(
                f"{self._where}: migrate filled {filled[0]!r}, and gives plain fields alone: its collections keep what "
                "is stored"
            )
        return self._plain_of(state)

    def _present(self, encoded: bytes) -> bytes:
        """What programs outside get of a state: the plain fields, and the sizes of the collections."""
        state = self._decode(encoded)
        plain = self._plain.encode(self._plain_of(state))
        if plain in (self._plain.default, state._deleted) and not any(
            len(getattr(state, name)) for name in self._plan.collections
        ):
            return b""
        shown = sizes(state)
        return msgspec.msgpack.encode(
            msgspec.msgpack.decode(plain) | {one: shown[one] for one in self._plan.collections}
        )


def _tree(pages: Pages, stored: _TreeHead) -> PageTree:
    return PageTree(pages, Node(stored.keys, list(stored.values)), stored.depth, stored.count, stored.blobs)


def _brief(given: Any) -> str:
    """A value in an error. The elements of a collection may be in the store, so only its kind is shown."""
    return f"another {type(given).__name__}" if isinstance(given, Collection) else f"{given!r:.80}"


def reset(state: GrowingState) -> None:
    """Empty a state: ``del ctx.state``. Its pages are deleted little by little."""
    _begin(state)
    for name in plan_of(type(state)).collections:
        getattr(state, name).clear()


def _begin(state: GrowingState) -> None:
    """Give a deleted state its default, which need not be the same each time: it may have an id or a time."""
    made = plan_of(type(state)).plain()
    set_plain(state, made)
    state._deleted = _plain_encoder(type(made))(made)


@cached_by_type
def _plain_encoder(plain: type[msgspec.Struct]) -> Callable[[Any], bytes]:
    return codec_for(plain, plain.__name__).encode


def sizes(state: GrowingState) -> dict[str, Any]:
    """A state for operators: the plain fields, and the size of each collection. It reads no pages."""
    plan = plan_of(type(state))
    return {
        name: {"elements": len(getattr(state, name)), "page_levels": getattr(state, name)._tree.depth}
        if name in plan.collections
        else getattr(state, name)
        for name in plan.names
    }
