"""How a sink becomes two computations of a topology."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from millwheel.connectors.sink import Sink
from millwheel.connectors.writing import EncodedBatch, MakeBatches, WriteBatches
from millwheel.model.time import Duration, milliseconds
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.plan import is_known
from millwheel.streams.declaring import Input, declare_step
from millwheel.streams.derivations import spread_key
from millwheel.streams.steps import Branch

__all__ = ["SinkOptions", "declare_sink"]

_RECORDS: Final = 1_000
_EVERY: Final = milliseconds(100)


class SinkOptions(TypedDict, total=False):
    """The options of ``to``."""

    shards: int
    records: int
    every: Duration


def declare_sink(given: Input, name: str, sink: Sink[Any], options: SinkOptions) -> None:
    """Declare the computation ``name``, which writes to the sink, and ``name-batches``, which makes batches for it.

    Raises:
        UsageError: Nothing states the type of the records. Or an option is not positive.
    """
    if not is_known(given.record_type):
        raise UsageError(f"the type of what goes to the sink {name!r} is not known: give the map before it a type, to=")
    shards, records, every = options.get("shards", 1), options.get("records", _RECORDS), options.get("every", _EVERY)
    for option, value in (("shards", shards), ("records", records), ("every", every)):
        if value < 1:
            raise UsageError(f"to({name!r}) takes a positive {option}, not {value}")
    codec, batches = codec_for(given.record_type, f"sink {name!r}"), f"{name}.batches"
    spread = given._replace(extractor=spread_key(given.extractor, given.record_type, shards))
    declare_step(f"{name}-batches", MakeBatches(codec, batches, records, int(every)), [spread], {}, {})
    called = f"{given.topology.name}/{name}"
    of_batches = Input(given.topology, (Branch(batches),), EncodedBatch, key("shard"))
    declare_step(name, WriteBatches(sink, codec, called, shards), [of_batches], {}, {})
