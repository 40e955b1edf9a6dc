"""Steps of streams whose keys are not those of the user: which keys they have."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["own_keys"]

_BY_HASH: Final = re.compile(r"(?P<key>.*) by hash to (?P<count>\d+) keys")
_IN_PARTS: Final = re.compile(r"(?P<key>.*) in (?P<count>\d+) shards")
_OF_VALUES: Final = "hash_of()"
_OF_RECORDS: Final = ":spreader.<locals>.shard_of"


def own_keys(spec: specs.ComputationSpec, key: str) -> str | None:
    """Return which keys a step has, if they are not those of the user. None: they are.

    Args:
        spec: The computation.
        key: The key that is looked at. It may be one of the user's.
    """
    for edge in spec.inputs:
        text = edge.key.function or ", ".join(edge.key.fields)
        if (found := _BY_HASH.fullmatch(text)) is not None:
            count = int(found["count"])
            shown = f"{spec.name} has the keys 0 to {count - 1}"
            if found["key"] == _OF_VALUES:
                return f"{shown}, by a hash of the record"
            number = crc32(key.encode()) % count
            return f"{shown}, by a hash of {found['key']}: records of {key!r} are under the key {number}"
        if text.endswith(_OF_RECORDS):
            return f"{spec.name} has keys of its own, by a hash of the record"
        if (found := _IN_PARTS.fullmatch(text)) is not None:
            count = int(found["count"])
            return f"{spec.name} has keys as '0|{key}': the records of a key are spread over parts 0 to {count - 1}"
    return None
