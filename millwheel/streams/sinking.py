"""How a sink becomes two computations of a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from millwheel.model.time import Duration, milliseconds
from millwheel.sdk.codecs import ValueCodec, ValueFormat, codec_for
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.plan import is_known
from millwheel.sdk.spreading import ANY_SHARD
from millwheel.sdk.typeinfo import type_name
from millwheel.sdk.validation import MAX_NAME
from millwheel.streams.declaring import Input, declare_step
from millwheel.streams.derivations import spread_key
from millwheel.streams.steps import Branch

if TYPE_CHECKING:
    from millwheel.connectors.sink import Sink

__all__ = ["WriteOptions", "declare_sink"]

_ORDERED_SHARDS: Final = "in the shard of its key, of"
"""How a record gets its shard, if the records of a key keep their order."""
_BATCH_RECORDS: Final = 1_000
_BATCH_DELAY: Final = milliseconds(100)


class WriteOptions(TypedDict, total=False):
    """The options of ``to``."""

    shards: int
    batch_records: int
    batch_delay: Duration


def declare_sink(given: Input, name: str, sink: Sink[Any], options: WriteOptions, *, ordered: bool) -> None:
    """Declare the computation ``name``, which writes to the sink, and ``name-batches``, which makes batches for it.

    Args:
        given: The records.
        name: The name of the sink.
        sink: Where they go.
        options: Those of ``to``.
        ordered: Whether the records of a key keep their order. Without it, records have no keys.

    Raises:
        UsageError: It is no sink, or one that cannot take such records. Or its name is too long, nothing states the
            type of the records, or an option is not positive.
    """
    # They load asyncio.
    from millwheel.connectors.batches import EncodedBatch
    from millwheel.connectors.sink import Sink
    from millwheel.connectors.writing import BATCHES, MAKES, MakeBatches, WriteBatches

    given_sink: object = sink
    if not isinstance(given_sink, Sink):
        what = f"the class {given_sink.__name__}" if isinstance(given_sink, type) else repr(given_sink)
        raise UsageError(f"to({name!r}) takes a sink: an instance of a subclass of connectors.Sink, not {what}")
    if len(name) > (most := MAX_NAME - len(MAKES)):
        raise UsageError(f"the name of a sink has up to {most} characters, because {MAKES!r} is added to it: {name!r}")
    if not is_known(given.record_type):
        raise UsageError(f"the type of what goes to the sink {name!r} is not known: give the map before it a type, to=")
    if problem := sink._problem(given.record_type):
        raise UsageError(f"to({name!r}): {problem}")
    shards = options.get("shards", 1)
    records, delay = options.get("batch_records", _BATCH_RECORDS), options.get("batch_delay", _BATCH_DELAY)
    for option, value in (("shards", shards), ("batch_records", records), ("batch_delay", delay)):
        if value < 1:
            raise UsageError(f"to({name!r}) takes a positive {option}, not {value}")
    codec, batches = codec_for(given.record_type, f"sink {name!r}"), f"{name}{BATCHES}"
    kind: Any = _kind_of(given.record_type, codec)
    makes, batch = MakeBatches[kind], EncodedBatch[kind]
    how = f"{_ORDERED_SHARDS if ordered and shards > 1 else ANY_SHARD} {shards}"
    spread = given._replace(extractor=spread_key(given.extractor, given.record_type, shards, how))
    declare_step(f"{name}{MAKES}", makes(codec, batches, batch, records, int(delay)), [spread], {}, {})
    of_batches = Input(given.topology, (Branch(batches),), batch, key("shard"))
    declare_step(name, WriteBatches[kind](sink, codec, given.record_type, shards), [of_batches], {}, {})


def _kind_of(record_type: Any, codec: ValueCodec) -> Any:
    """The type of the values for the schema of batches. A type that no struct can have is there by its name."""
    return record_type if codec.format is ValueFormat.MSGPACK else Literal[type_name(record_type)]
