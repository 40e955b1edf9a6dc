"""User code in this process: packages are fetched once by digest, loaded, and compiled per computation (design §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from millwheel.core.catalog import Consumer
from millwheel.rpc.v1 import topology_pb2 as topology
from millwheel.sdk.compiled import CompiledComputation, compile_computation, consumers_of
from millwheel.sdk.keys import mapping_extractor
from millwheel.sdk.package import load_topology
from millwheel.sdk.topology import Topology

__all__ = ["Programs"]


class Programs:
    """The code packages that this process has loaded."""

    def __init__(self, directory: Path, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        self._directory = directory
        self._fetch = fetch
        self._loaded: dict[tuple[str, str], Topology] = {}
        self._lock = asyncio.Lock()

    async def load(self, code: topology.CodeReference) -> Topology:
        """The topology object of a package; PackageError says why it cannot be had."""
        place = (code.digest, code.entry_point)
        async with self._lock:
            if place not in self._loaded:
                package = await self._fetch(code.digest)
                self._loaded[place] = load_topology(code.digest, package, code.entry_point, self._directory)
        return self._loaded[place]

    def has(self, code: topology.CodeReference) -> bool:
        """Whether the package is loaded."""
        return (code.digest, code.entry_point) in self._loaded

    def compile(self, code: topology.CodeReference, name: str) -> CompiledComputation:
        """What a worker runs of the computation ``name`` of a loaded package."""
        return compile_computation(self._loaded[code.digest, code.entry_point], name)

    def extractor(self, consumer: Consumer, stream: str) -> Callable[[object], bytes]:
        """The key extractor of a consumer: its own code's where that is loaded, else by the fields of its spec."""
        loaded = self._loaded.get((consumer.code.digest, consumer.code.entry_point))
        if loaded is not None:
            for name, extract in consumers_of(loaded, stream):
                if name == consumer.computation:
                    return extract
        return mapping_extractor(tuple(consumer.key.fields), stream, consumer.computation)
