"""Keys for consumers that name them by a function (section 4.2): their code comes from the server.

A consumer that is keyed by fields needs nothing: the injector follows the fields in the row. A function
gets the record as its consumer's topology decodes it, so the topology's package is downloaded and loaded
in the executor, once for each of its processes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millwheel.client.control import ControlClient
from millwheel.injectors.spark.errors import SinkError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.compiled import consumers_of
from millwheel.sdk.errors import KeyExtractionError, PackageError
from millwheel.sdk.package import load_topology
from millwheel.sdk.topology import Topology

__all__ = ["CodeKeys", "find_code_keys"]

_FORMATS = {
    specs.VALUE_FORMAT_PROTOBUF: "protobuf messages",
    specs.VALUE_FORMAT_RAW: "raw bytes",
    specs.VALUE_FORMAT_CUSTOM: "values of a codec of its own",
}
_topologies: dict[tuple[str, str], Topology] = {}


@dataclass(frozen=True, slots=True)
class _CodeKey:
    """One consumer's key function, and the decoder of what it is given."""

    consumer: str
    decode: Callable[[bytes], Any]
    extract: Callable[[Any], bytes]


class CodeKeys:
    """Columns of keys for the consumers that have functions for them."""

    def __init__(self, found: Sequence[_CodeKey]) -> None:
        self._found = found

    def columns(self, values: Sequence[Any]) -> dict[str, list[bytes]]:
        """By "topology/computation", each value's key; the error names what the function or the decoder refused."""
        if not self._found:
            return {}
        encoded = [msgspec.msgpack.encode(value) for value in values]
        return {one.consumer: [one.extract(one.decode(data)) for data in encoded] for one in self._found}


async def find_code_keys(client: ControlClient, stream: str) -> CodeKeys:
    """Learn how the stream's consumers key it.

    SinkError if the stream does not carry mappings; KeyExtractionError if the code of a function cannot be had.
    """
    routing = await client.routing(stream)
    if carried := _FORMATS.get(routing.stream.format):
        raise SinkError(
            f"stream {stream!r} carries {carried}, and a row is a mapping of its columns: write it to a stream of "
            "msgpack, and convert it there"
        )
    return CodeKeys([await _load(client, stream, route) for route in routing.consumers if route.key.function])


async def _load(client: ControlClient, stream: str, route: control.ConsumerRoute) -> _CodeKey:
    where = f"{route.topology}/{route.computation}"
    code = route.code
    try:
        topology = _topologies.get((code.digest, code.entry_point))
        if topology is None:
            data = await client.download_package(code.digest)
            topology = load_topology(code.digest, data, code.entry_point, _directory())
            _topologies[code.digest, code.entry_point] = topology
    except PackageError as error:
        raise KeyExtractionError(
            f"stream {stream!r} is keyed for {where} by code ({route.key.function}), which cannot be loaded here: "
            f"{error}. What it imports must be installed for the executors; after a topology has changed, restart the "
            "session, or set spark.python.worker.reuse to false. Or key that input by fields"
        ) from error
    declared = topology.plan().streams.get(stream)
    extract = dict(consumers_of(topology, stream)).get(route.computation)
    if declared is None or declared.codec is None or extract is None:
        raise KeyExtractionError(f"stream {stream!r}: the code of {where} does not read it")
    return _CodeKey(where, declared.codec.decode, extract)


def _directory() -> Path:
    """Where packages are unpacked: below what Spark removes with the application, if it says where that is."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(tempfile.mkdtemp(prefix="millwheel-packages-", dir=local if Path(local).is_dir() and local else None))
