"""Routes a produced record: its consumers, their keys, and the owners of these keys (sections 4.2, 4.3).

The consumer names the key extractor, which runs here, at the sender. So the consumer's code is loaded here, like the
producer's code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.model.catalog import Catalog, Consumer
from millwheel.sdk.context import OutputBinding
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import KeyExtractionError

__all__ = ["CatalogRouting"]

Route = Callable[[Any], tuple[tuple[str, bytes], ...]]
Extractor = Callable[[Any], bytes]


class CatalogRouting:
    """Routes by the present catalog. Call ``refresh`` after each change."""

    def __init__(self, catalog: Catalog, extractor_of: Callable[[Consumer, str], Extractor]) -> None:
        self._catalog = catalog
        self._extractor_of = extractor_of
        self._bindings: list[tuple[str, OutputBinding]] = []

    def bind(self, stream: str, encode: Callable[[Any], bytes]) -> OutputBinding:
        """A binding for one producer of ``stream``. It is kept up to date until ``release``."""
        binding = OutputBinding(stream, encode, self._route(stream))
        self._bindings.append((stream, binding))
        return binding

    def release(self, bindings: list[OutputBinding]) -> None:
        """These bindings are not used any more."""
        gone = {id(binding) for binding in bindings}
        self._bindings = [(stream, one) for stream, one in self._bindings if id(one) not in gone]

    def refresh(self) -> None:
        """The catalog has changed: update the consumers."""
        routes: dict[str, Route] = {}
        for stream, binding in self._bindings:
            if stream not in routes:
                routes[stream] = self._route(stream)
            binding.route = routes[stream]

    def locate(self, consumer: str, key: bytes) -> str:
        """The journal of the interval of ``consumer`` with ``key``. Empty while there is none."""
        interval = self._catalog.locate(consumer, key)
        return "" if interval is None else interval.journal

    def _route(self, stream: str) -> Route:
        """A function from a value to its (consumer, key) pairs."""
        consumers = self._catalog.consumers(stream)
        keyed = [(one.incarnation, self._named(stream, one)) for one in consumers if not one.log]
        fixed = tuple((one.incarnation, b"") for one in consumers if one.log)
        if not keyed:
            return lambda value: fixed
        if len(keyed) == 1 and not fixed:
            incarnation, extract = keyed[0]
            return lambda value: ((incarnation, extract(value)),)
        return lambda value: (*((incarnation, extract(value)) for incarnation, extract in keyed), *fixed)

    def _named(self, stream: str, consumer: Consumer) -> Extractor:
        """The consumer's extractor. Its exceptions are converted so that they name the consumer."""
        extract = self._extractor_of(consumer, stream)

        def extract_key(value: Any) -> bytes:
            try:
                return extract(value)
            except KeyExtractionError:
                raise
            except Exception as error:
                raise KeyExtractionError(
                    f"the key extractor of computation {consumer.computation!r} for stream {stream!r} raised "
                    f"{error_message(error)}",
                    computation=consumer.computation,
                ) from error

        return extract_key
