"""Encodes users' values, and extracts their keys for each consumer (sections 4.2, 4.3).

With a :class:`~millwheel.sdk.topology.TopologyGraph` object, the encoder uses its types, codecs and key functions.
Without one, it uses the stream's format and the consumers' field paths. A field path is read from mappings, or from
objects whose attributes have the encoded names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from millwheel.client.injector.errors import WrongIdOrKeyError
from millwheel.client.injector.routing import ConsumerRouting
from millwheel.model.limits import MAX_KEY_BYTES, MAX_VALUE_BYTES
from millwheel.model.stream_names import local_name
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.compiled import consumers_of
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError, ValueEncodeError
from millwheel.sdk.keys import KeyExtractor, mapping_extractor
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import type_name

__all__ = ["GivenKeys", "RecordEncoder"]

GivenKeys = Mapping[str, Sequence[str | bytes]] | Sequence[str | bytes]
"""Columns of keys by computation name (or "topology/computation"). Or one column for all consumers."""

_Extract = Callable[[Any], bytes]

_MAX_EXTRACTORS: Final = 1_000
"""The most extractors kept. A bound is needed because consumers join and leave as long as the stream exists."""


class RecordEncoder:
    """Encodes the records of one stream."""

    def __init__(self, stream: str, topology: TopologyGraph | None = None, *, verify: bool = True) -> None:
        """Create an encoder.

        Args:
            stream: The stream of the records.
            topology: A topology that reads the stream.
            verify: Whether to refuse values that cannot be decoded again as the topology's type, in all parts.

        Raises:
            TopologyError: ``topology`` is invalid.
            UsageError: ``topology`` does not read the stream.
        """
        self.stream = stream
        self._topology = topology
        self._verify = verify
        self._encode: Callable[[Any], bytes] | None = None
        self._decode: Callable[[bytes], Any] | None = None
        self._encode_any = codec_for(Any, f"stream {stream!r}").checked
        self._known: dict[tuple[str, str], tuple[tuple[str, ...], _Extract]] = {}
        """By topology and computation: the fields of the key that the topology object declares, and its extractor."""
        self._by_type: dict[tuple[str, tuple[str, ...], type], _Extract] = {}
        if topology is not None:
            self._learn(topology)

    def _learn(self, topology: TopologyGraph) -> None:
        called = local_name(topology.name, self.stream)
        found = topology.plan().streams.get(called)
        if found is None or found.codec is None:
            raise UsageError(f"topology {topology.name!r} has no stream {called!r}")
        self._encode = found.codec.verify if self._verify else found.codec.checked
        self._decode = found.codec.decode
        computations = topology.plan().computations
        for computation, extract in consumers_of(topology, called):
            declared = computations[computation].inputs[called].to_proto(found.type)
            self._known[topology.name, computation] = tuple(declared.fields), extract

    def _own_extractor(self, consumer: ConsumerRouting) -> _Extract | None:
        """The topology object's extractor for ``consumer``. None if there is none, or an update changed the key.

        Only the fields are compared. The names of functions depend on how a program was started, so any function counts
        as equal to any other.
        """
        fields, extract = self._known.get((consumer.topology, consumer.computation), ((), None))
        return extract if fields == consumer.fields else None

    def encode(self, values: Sequence[Any], form: specs.ValueFormat.ValueType) -> list[bytes]:
        """Encode values in the stream's format. ValueEncodeError or TooLargeError names a value that does not fit."""
        encode = self.value_encoder(form)
        return self.check([encode(value) for value in values])

    def value_encoder(self, form: specs.ValueFormat.ValueType) -> Callable[[Any], bytes]:
        """The encoder of single values in the stream's format. It does not check their size."""
        return self._encode or self._by_format(form)

    def rows(self, values: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Encode the rows of a table: maps in MessagePack. Errors are those of :meth:`encode`."""
        return self.check([self._encode_any(value) for value in values])

    def check(self, encoded: Sequence[bytes]) -> list[bytes]:
        """Return ``encoded`` as a list. ValueEncodeError or TooLargeError if a value is not bytes or too large."""
        try:
            longest = max(map(len, encoded), default=0)
        except TypeError:
            raise ValueEncodeError(f"stream {self.stream!r}: encoded values are bytes") from None
        if longest > MAX_VALUE_BYTES:
            raise TooLargeError(f"a record of stream {self.stream!r}", longest, MAX_VALUE_BYTES)
        return encoded if isinstance(encoded, list) else list(encoded)

    def _by_format(self, form: specs.ValueFormat.ValueType) -> Callable[[Any], bytes]:
        if form == specs.VALUE_FORMAT_RAW:
            return codec_for(bytes, f"stream {self.stream!r}").checked
        if form == specs.VALUE_FORMAT_PROTOBUF:
            return self._encode_message
        if form == specs.VALUE_FORMAT_CUSTOM:
            raise UsageError(
                f"stream {self.stream!r} has a codec of its own: pass topology=, or encoded=True with encoded values"
            )
        return self._encode_any

    def _encode_message(self, value: Any) -> bytes:
        try:
            encoded: bytes = value.SerializeToString(deterministic=True)
        except Exception as error:
            raise ValueEncodeError(
                f"stream {self.stream!r} carries protobuf messages, not {type_name(type(value))} ({error})"
            ) from error
        return encoded

    def keys(
        self,
        consumer: ConsumerRouting,
        values: Sequence[Any] | None,
        encoded: Sequence[bytes],
        given: GivenKeys | None,
        form: specs.ValueFormat.ValueType,
    ) -> list[bytes]:
        """Each record's key at ``consumer``: from the column ``given``, or from the values (decoded if necessary).

        Raises:
            KeyExtractionError: A value has no key.
            TooLargeError: A key is too large.
            WrongIdOrKeyError: A given key is none.
            UsageError: The given keys do not fit the records.
        """
        if (same := consumer.same_of_rows) is not None:
            return [same] * len(encoded)
        column = self._column(consumer, given)
        if column is not None:
            return self._check_keys(consumer, column, len(encoded))
        if values is None:
            decode = self._decode or self._decoder(consumer, form)
            values = [decode(value) for value in encoded]
        kinds = {type(values[0])} if self._own_extractor(consumer) and values else set(map(type, values))
        if len(kinds) == 1:
            extract = self.extractor(consumer, kinds.pop())
            return [extract(value) for value in values]
        return [self.extractor(consumer, type(value))(value) for value in values]

    def extractor(self, consumer: ConsumerRouting, kind: type) -> Callable[[Any], bytes]:
        """The function from a value of type ``kind`` to its key at ``consumer``, which may have one key only.

        Raises:
            KeyExtractionError: Only the consumer's code, which is not here, knows the key.
        """
        if (same := consumer.same_of_rows) is not None:
            return lambda value: same
        return self._own_extractor(consumer) or self._extractor(consumer, kind)

    def keys_locally(self, consumer: ConsumerRouting) -> bool:
        """Whether keys for ``consumer`` are known here: there is one, or by its fields, or by the topology object."""
        known = self._own_extractor(consumer) is not None
        return consumer.same_of_rows is not None or known or not consumer.function or bool(consumer.fields)

    def has_column(self, consumer: ConsumerRouting, given: GivenKeys | None) -> bool:
        """Whether ``given`` has keys for ``consumer``."""
        return self._column(consumer, given) is not None

    def _column(self, consumer: ConsumerRouting, given: GivenKeys | None) -> Sequence[str | bytes] | None:
        if given is None or not isinstance(given, Mapping):
            return given
        column = given.get(consumer.computation)
        return given.get(f"{consumer.topology}/{consumer.computation}") if column is None else column

    def _check_keys(self, consumer: ConsumerRouting, column: Sequence[str | bytes], count: int) -> list[bytes]:
        if len(column) != count:
            raise UsageError(f"{len(column)} keys for computation {consumer.computation!r}, but {count} records")
        try:
            keys = [key.encode() if isinstance(key, str) else key for key in column]
        except UnicodeEncodeError as error:
            raise WrongIdOrKeyError(
                f"a key for computation {consumer.computation!r} is no text that UTF-8 has: {error.object!a:.80} "
                f"({error.reason} at character {error.start})"
            ) from error
        if wrong := [key for key in keys if key.__class__ is not bytes]:
            raise WrongIdOrKeyError(
                f"keys for computation {consumer.computation!r} are str or bytes, not {wrong[0]!r:.80}"
            )
        if keys and (longest := max(map(len, keys))) > MAX_KEY_BYTES:
            raise TooLargeError(f"a key for computation {consumer.computation!r}", longest, MAX_KEY_BYTES)
        return keys

    def _decoder(self, consumer: ConsumerRouting, form: specs.ValueFormat.ValueType) -> Callable[[bytes], Any]:
        if form in (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED):
            return msgspec.msgpack.decode
        raise KeyExtractionError(
            f"stream {self.stream!r}: the keys for computation {consumer.computation!r} cannot be read from encoded "
            "values: pass keys=, or topology="
        )

    def _extractor(self, consumer: ConsumerRouting, kind: type) -> _Extract:
        # An update of a topology may change the fields without a new incarnation. So the fields are part of the cache
        # key.
        extract = self._by_type.get((consumer.incarnation, consumer.fields, kind))
        if extract is None:
            extract = self._make_extractor(consumer, kind)
            if len(self._by_type) >= _MAX_EXTRACTORS:
                self._by_type.clear()
            self._by_type[consumer.incarnation, consumer.fields, kind] = extract
        return extract

    def _make_extractor(self, consumer: ConsumerRouting, kind: type) -> _Extract:
        if not consumer.fields:
            raise KeyExtractionError(
                f"stream {self.stream!r} is keyed for computation {consumer.computation!r} of topology "
                f"{consumer.topology!r} by code ({consumer.function or 'a function'}): pass that topology=, or keys="
            )
        if issubclass(kind, Mapping):
            return mapping_extractor(consumer.fields, self.stream, consumer.computation)
        paths = tuple(_attribute_path(kind, path) for path in consumer.fields)
        return KeyExtractor(fields=paths).bind(kind, self.stream, consumer.computation)


def _attribute_path(kind: Any, path: str) -> str:
    """Convert a path of encoded names to attribute names of ``kind``, whose fields may be renamed."""
    names = []
    for name in path.split("."):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            field = next((one for one in msgspec.structs.fields(kind) if one.encode_name == name), None)
            name, kind = (field.name, field.type) if field is not None else (name, None)
        names.append(name)
    return ".".join(names)
