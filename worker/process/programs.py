"""User code in this process: packages are fetched once by digest, loaded, and compiled per computation."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from millwheel.model.catalog import Consumer, codes_of
from millwheel.model.stream_names import local_name, owner_of
from millwheel.rpc.v1 import topology_pb2 as topology
from millwheel.sdk.compiled import CompiledComputation, compile_computation, consumers_of
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import KeyExtractionError, MillwheelError
from millwheel.sdk.keys import mapping_extractor
from millwheel.sdk.loading import load_topology, unload_package
from millwheel.sdk.topology import TopologyGraph
from millwheel.worker.interval.hooks.failures import HOOK_ERRORS

__all__ = ["Programs", "beside"]

log = logging.getLogger("millwheel.worker")

Loaded = TypeVar("Loaded")

Place: TypeAlias = tuple[str, str]
"""(package's digest, entry point in it)."""

_PATIENCE_SECONDS: Final = 0.5
"""Seconds to wait for packages whose loading has just begun. Most are loaded by then."""


async def beside(call: Callable[[], Loaded]) -> Loaded:
    """Run ``call`` in a new thread, and return its result. ``call`` may never end. Nothing else waits for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Loaded] = loop.create_future()

    def settle(result: Loaded | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="user code", daemon=True).start()
    return await done


class _Named:
    """A package's topology under one name, and the objects built from it. They are built once, as intervals open by
    the hundred."""

    def __init__(self, topology: TopologyGraph, verify: bool) -> None:
        self.topology = topology
        self._verify = verify
        self._compiled: dict[str, CompiledComputation] = {}
        self._extractors: dict[str, dict[str, Callable[[object], bytes]]] = {}

    def compile(self, name: str) -> CompiledComputation:
        """The compiled computation ``name``."""
        if name not in self._compiled:
            self._compiled[name] = compile_computation(self.topology, name, verify=self._verify, full_names=True)
        return self._compiled[name]

    def extractors(self, stream: str) -> dict[str, Callable[[object], bytes]]:
        """The key extractors of the stream's consumers, by name."""
        if stream not in self._extractors:
            self._extractors[stream] = dict(consumers_of(self.topology, stream))
        return self._extractors[stream]


class _Loaded:
    """A package's topology. A fork runs it under another name than the code gives it, and maybe beside the original."""

    def __init__(self, topology: TopologyGraph, verify: bool) -> None:
        self.topology = topology
        self._verify = verify
        self._named: dict[str, _Named] = {}

    def named(self, name: str) -> _Named:
        """The topology under ``name``. Its streams have their full names from it."""
        if name not in self._named:
            own = name == self.topology.name
            self._named[name] = _Named(self.topology if own else self.topology.named(name), self._verify)
        return self._named[name]

    def keep(self, names: Collection[str]) -> None:
        """Forget what was built under other names."""
        self._named = {name: built for name, built in self._named.items() if name in names}


class Programs:
    """The code packages that this process has loaded."""

    def __init__(
        self,
        directory: Path,
        fetch: Callable[[str], Awaitable[bytes]],
        on_late_load: Callable[[], None],
        *,
        verify: bool = True,
        admit: Callable[[topology.CodeReference], None] = lambda code: None,
    ) -> None:
        """
        Args:
            directory: Where packages are unpacked.
            fetch: Returns the bytes of a package, by its digest.
            on_late_load: Called when a package is loaded after ``load_all`` has returned.
            admit: Raises an error for code that must not be loaded here.
            verify: Whether to refuse values of hooks that could not be read again as their declared type.
        """
        self._on_late_load = on_late_load
        self._directory = directory
        self._fetch = fetch
        self._verify = verify
        self._admit = admit
        self._loaded: dict[Place, _Loaded] = {}
        self._failures: dict[Place, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By digest. A lock exists as long as a task holds it or waits for it."""
        self._loading: dict[Place, asyncio.Task[bool]] = {}

    async def load_all(self, specs: Iterable[topology.TopologySpec]) -> bool:
        """Load missing packages. Returns False if a package is still missing.

        Packages are loaded in parallel, and none waits for another. Slow ones continue after this method has returned.
        """
        wanted = {(code.digest, code.entry_point): (code, spec.name) for spec in specs for code in codes_of(spec)}
        self._failures = {place: why for place, why in self._failures.items() if place in wanted}
        begun = [
            self._begin(place, code, name)
            for place, (code, name) in wanted.items()
            if place not in self._loaded and place not in self._loading
        ]
        if begun:
            _, late = await asyncio.wait(begun, timeout=_PATIENCE_SECONDS)
            for task in late:
                task.add_done_callback(self._came_late)
        return wanted.keys() <= self._loaded.keys()

    def _begin(self, place: Place, code: topology.CodeReference, name: str) -> asyncio.Task[bool]:
        """Load a package in a task. The task's result is True if the package is loaded."""

        async def work() -> bool:
            try:
                await self.load(code)
                self._failures.pop(place, None)
            except (MillwheelError, OSError) as error:
                before = self._failures.get(place)
                self._failures[place] = f"the code of topology {name!r} cannot be loaded: {error}"
                if before != self._failures[place]:
                    log.error("%s", self._failures[place])
                return False
            finally:
                del self._loading[place]
            return True

        task = self._loading[place] = asyncio.get_running_loop().create_task(work())
        return task

    def _came_late(self, task: asyncio.Task[bool]) -> None:
        if not task.cancelled() and task.result():
            self._on_late_load()

    def close(self) -> None:
        """Cancel all loading."""
        for task in self._loading.values():
            task.cancel()

    def keep(self, codes: Iterable[topology.CodeReference], topologies: Collection[str] = ()) -> None:
        """Unload the packages that ``codes`` does not name. Their modules are removed.

        Of the others, only what was built for ``topologies`` stays.
        """
        wanted = {(code.digest, code.entry_point) for code in codes}
        gone = self._loaded.keys() - wanted
        for place in gone:
            del self._loaded[place]
        busy = {digest for digest, lock in self._locks.items() if lock.locked()}
        for loaded in self._loaded.values():
            loaded.keep(topologies)
        for digest in sorted({digest for digest, _ in gone} - {digest for digest, _ in self._loaded} - busy):
            unload_package(digest)

    def failure(self, code: topology.CodeReference) -> str:
        """Why a package could not be loaded. Empty if it was loaded, or not tried yet."""
        return self._failures.get((code.digest, code.entry_point), "")

    def is_loading(self, code: topology.CodeReference) -> bool:
        """Whether a package is being loaded, and has not failed before."""
        place = code.digest, code.entry_point
        return place in self._loading and place not in self._failures

    async def load(self, code: topology.CodeReference) -> TopologyGraph:
        """The topology object of a package.

        Raises:
            PackageError: Says why the package cannot be loaded.
        """
        place = (code.digest, code.entry_point)
        async with self._locks.setdefault(code.digest, asyncio.Lock()):
            if place not in self._loaded:
                self._admit(code)
                package = await self._fetch(code.digest)
                self._loaded[place] = _Loaded(
                    await beside(partial(load_topology, code.digest, package, code.entry_point, self._directory)),
                    self._verify,
                )
        return self._loaded[place].topology

    def has(self, code: topology.CodeReference) -> bool:
        """Whether the package is loaded."""
        return (code.digest, code.entry_point) in self._loaded

    def compile(self, code: topology.CodeReference, name: str, computation: str) -> CompiledComputation:
        """The compiled ``computation`` of a loaded package, as one of topology ``name``."""
        return self._loaded[code.digest, code.entry_point].named(name).compile(computation)

    def decoder(self, code: topology.CodeReference, stream: str) -> Callable[[bytes], Any] | None:
        """The decoder of a stream's values, from a loaded package of the topology that the stream belongs to.

        None if the package does not know the stream.
        """
        made = self._loaded[code.digest, code.entry_point].named(owner_of(stream)).topology
        found = made.plan().streams.get(local_name(made.name, stream))
        return None if found is None or found.codec is None else found.codec.decode

    def extractor(self, consumer: Consumer, stream: str) -> Callable[[object], bytes]:
        """The key extractor of a consumer. It comes from its own code if that is loaded, otherwise from its spec's
        fields.

        It never raises, because every change of the catalog calls it for the consumers of all topologies. If the
        consumer's code is not available, or has no extractor, the returned function raises KeyExtractionError when
        called.
        """
        try:
            return self._extractor(consumer, stream)
        except HOOK_ERRORS as error:
            return _unknown(f"{_unknown_key(consumer, stream)}: its code raised {error_message(error)}")

    def _extractor(self, consumer: Consumer, stream: str) -> Callable[[object], bytes]:
        loaded = self._loaded.get((consumer.code.digest, consumer.code.entry_point))
        known = None if loaded is None else loaded.named(consumer.topology).extractors(stream).get(consumer.computation)
        if known is not None:
            return known
        if consumer.key.HasField("same_key"):
            # Also with rows_by_function: what the steps drop has no effect under any key. An injector asks a worker
            # with the code instead. Here the records of other topologies would wait for it.
            same = consumer.key.same_key.encode()
            return lambda value: same
        if not consumer.key.fields:
            why = self.failure(consumer.code) or "its code is not loaded here"
            return _unknown(f"{_unknown_key(consumer, stream)}: {why}")
        return mapping_extractor(tuple(consumer.key.fields), stream, consumer.computation)


def _unknown_key(consumer: Consumer, stream: str) -> str:
    return f"the key of stream {stream!r} for computation {consumer.computation!r} is unknown"


def _unknown(why: str) -> Callable[[object], bytes]:
    def raise_unknown(value: object) -> bytes:
        raise KeyExtractionError(why)

    return raise_unknown
