"""How a sink becomes two computations of a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from millwheel.model.time import Duration, milliseconds
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.plan import is_known
from millwheel.streams.declaring import Input, declare_step
from millwheel.streams.derivations import spread_key
from millwheel.streams.steps import Branch

if TYPE_CHECKING:
    from millwheel.connectors.sink import Sink

__all__ = ["WriteOptions", "declare_sink"]

_RECORDS: Final = 1_000
_EVERY: Final = milliseconds(100)


class WriteOptions(TypedDict, total=False):
    """The options of ``to``."""

    shards: int
    records: int
    every: Duration


def declare_sink(given: Input, name: str, sink: Sink[Any], options: WriteOptions) -> None:
    """Declare the computation ``name``, which writes to the sink, and ``name-batches``, which makes batches for it.

    Raises:
        UsageError: Nothing states the type of the records. Or an option is not positive.
    """
    from millwheel.connectors.writing import BATCHES, EncodedBatch, MakeBatches, WriteBatches  # it loads asyncio

    if not is_known(given.record_type):
        raise UsageError(f"the type of what goes to the sink {name!r} is not known: give the map before it a type, to=")
    shards, records, every = options.get("shards", 1), options.get("records", _RECORDS), options.get("every", _EVERY)
    for option, value in (("shards", shards), ("records", records), ("every", every)):
        if value < 1:
            raise UsageError(f"to({name!r}) takes a positive {option}, not {value}")
    codec, batches = codec_for(given.record_type, f"sink {name!r}"), f"{name}{BATCHES}"
    spread = given._replace(extractor=spread_key(given.extractor, given.record_type, shards))
    declare_step(
        f"{name}-batches", MakeBatches(given.topology.name, codec, batches, records, int(every)), [spread], {}, {}
    )
    of_batches = Input(given.topology, (Branch(batches),), EncodedBatch, key("shard"))
    declare_step(name, WriteBatches(sink, codec, shards), [of_batches], {}, {})
