"""User code in a worker, and what is done without it (design §10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.core.catalog import Consumer
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import KeyExtractionError, PackageError
from millwheel.worker.shell.programs import Programs

CODE = specs.CodeReference(digest="ab" * 32, entry_point="other:topology")


def consumer(key: specs.KeySpec) -> Consumer:
    return Consumer("other.1", "other", "counter", key, CODE, exactly_once=True, feedback=False, log=False)


async def missing(digest: str) -> bytes:
    raise PackageError("it imports a module that is not installed")


async def test_g8_a_consumer_whose_code_cannot_be_loaded_fails_what_needs_its_key_and_nothing_else(
    tmp_path: Path,
) -> None:
    """To make the extractor raised, for each change of the catalog: of all topologies nothing was opened any more."""
    programs = Programs(tmp_path, missing)
    spec = specs.TopologySpec(name="other", code=CODE, computations=[specs.ComputationSpec(name="counter")])
    assert not await programs.load_all([spec])
    extract = programs.extractor(consumer(specs.KeySpec(function="other:by_user")), "clicks")
    with pytest.raises(KeyExtractionError, match=r"stream 'clicks' for computation 'counter'.*not installed"):
        extract({"user": "u"})


async def test_keys_by_fields_need_no_code(tmp_path: Path) -> None:
    programs = Programs(tmp_path, missing)
    extract = programs.extractor(consumer(specs.KeySpec(fields=["user"])), "clicks")
    assert extract({"user": "u"}) == b"u"
