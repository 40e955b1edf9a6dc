"""What determines the key of a record that is keyed after steps, in a form that two versions of a program can compare.

Filters are left out. Invariant: a filter changes no key of a record that passes it. A record that it drops has no
effect. So an update may change filters: a record that is sent again takes effect once, whichever of both versions lets
it pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from zlib import crc32

from millwheel.sdk.function_code import code_digest
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.spreading import bytes_reader, hash_of
from millwheel.sdk.topology import TopologyGraph
from millwheel.streams.steps import Branch, Filter, Map, Only

__all__ = [
    "DerivedKeyExtractor",
    "KeyTexts",
    "derivation_of",
    "derived_key",
    "key_reader",
    "spread_key",
    "text_key_reader",
    "value_key",
]


class KeyDerivation(NamedTuple):
    """How a record gets its key."""

    name: str
    """The names of the steps and of the key: ``only(Bid).map(price_of).key_by(auction)``."""
    parts: tuple[Any, ...]
    """The functions of the steps and of the key."""


_NONE: Final = KeyDerivation("", ())


@dataclass(frozen=True, slots=True)
class DerivedKeyExtractor(KeyExtractor):
    """An extractor whose function runs steps before it reads the key."""

    derivation: KeyDerivation = _NONE
    changes: bool = field(default=False, compare=False)
    """Whether the function may change its argument."""
    same: str | None = field(default=None, compare=False)
    """The key that all records may have. Then none of the steps has to make a value for it."""
    drops: bool = field(default=False, compare=False)
    """Whether the function gives other keys to records that the steps drop."""

    @property
    def _for_all(self) -> str | None:
        """See KeyExtractor."""
        return self.same

    @property
    def _rows_by_function(self) -> bool:
        """See KeyExtractor."""
        return self.same is not None and self.drops

    @property
    def needs_copy(self) -> bool:
        """See KeyExtractor."""
        return self.changes

    def _code_name(self, record_type: Any) -> str:
        return self.derivation.name

    def _code_digest(self) -> str:
        return code_digest(self.derivation.parts)

    def __str__(self) -> str:
        return f"key({self.derivation.name})"


def derivation_of(keyed: Sequence[tuple[Branch, KeyExtractor, Any]]) -> KeyDerivation:
    """The derivation of one key from branches of a stream, each with its key and record type."""
    derived = [_derive(*each) for each in keyed]
    # Each digest has its branch's name in it. Else two branches of different kinds could exchange their keys unnoticed.
    digests = sorted({code_digest((each.name, *each.parts)) for each in derived})
    parts = derived[0].parts if len(digests) == 1 else tuple(digests)
    return KeyDerivation(" | ".join(sorted({each.name for each in derived})), parts)


def derived_key(
    function: Callable[[Any], str | int], extractor: KeyExtractor, record_type: Any, how: str
) -> DerivedKeyExtractor:
    """An extractor whose function makes another key of the one that ``extractor`` reads. ``how`` says which one."""
    name, parts = _derive(Branch(""), extractor, record_type)
    derivation = KeyDerivation(f"{name} {how}", parts)
    return DerivedKeyExtractor(function=function, derivation=derivation, changes=extractor.needs_copy)


def spread_key(extractor: KeyExtractor, record_type: Any, keys: int, how: str = "") -> DerivedKeyExtractor:
    """One of ``keys`` numbers, by a hash of the key: records of one key get one number. ``how`` describes it."""
    how = how or f"by hash to {keys} keys"
    if keys == 1:
        return replace(derived_key(_zero, extractor, record_type, how), changes=False, same=str(_zero(None)))
    read = key_reader(extractor)

    def number_of(value: Any) -> int:
        return crc32(read(value)) % keys

    return derived_key(number_of, extractor, record_type, how)


def _zero(value: Any) -> int:
    """The only number below 1. Nothing is read from the value."""
    return 0


def value_key(topology: TopologyGraph, branches: Iterable[Branch]) -> DerivedKeyExtractor:
    """A hash of the value, for steps that need no key of the user's."""
    encode = bytes_reader(topology, [branch.stream for branch in branches])

    def number_of(value: Any) -> int:
        return crc32(encode(value))

    # `hash_of` gives the same numbers, for values of most types.
    return DerivedKeyExtractor(function=number_of, derivation=KeyDerivation("hash_of()", (hash_of,)))


class KeyTexts(dict[type, Callable[[Any], str]]):
    """Functions from values to their keys as text, by the values' classes."""

    def __init__(self, extractor: KeyExtractor) -> None:
        super().__init__()
        self._extractor = extractor

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        read = self[kind] = self._extractor._bind_text(kind)
        return read


def text_key_reader(extractor: KeyExtractor) -> Callable[[Any], str]:
    """A function from a value of any type to its key as text."""
    texts = KeyTexts(extractor)
    return lambda value: texts[value.__class__](value)


def key_reader(extractor: KeyExtractor) -> Callable[[Any], bytes]:
    """A function from a value of any type to its key."""
    read = text_key_reader(extractor)
    return lambda value: read(value).encode()


def _derive(branch: Branch, extractor: KeyExtractor, record_type: Any) -> KeyDerivation:
    changing = [step for step in branch.steps if not isinstance(step, Filter)]
    functions: list[Any] = [step.function for step in changing if isinstance(step, Map)]
    # The fields' names as records are encoded: a field may get another name in the class.
    fields = tuple(extractor.to_proto(record_type).fields) or extractor.fields
    if isinstance(extractor, DerivedKeyExtractor):
        key = alone = extractor.derivation.name
        parts = (*functions, *extractor.derivation.parts)
    elif extractor.function is not None:
        key = _name(extractor.function)
        alone = f"{key}()"
        parts = (*functions, extractor.function)
    else:
        key = alone = ", ".join(fields)
        parts = (*functions, fields)
    if not changing:
        return KeyDerivation(alone, parts)
    steps = [
        f"only({_name(step.kind)})" if isinstance(step, Only) else f"map({_name(step.function)})" for step in changing
    ]
    return KeyDerivation(".".join([*steps, f"key_by({key})"]), parts)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
