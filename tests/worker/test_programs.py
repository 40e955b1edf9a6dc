"""User code in a worker, and the work that does not need it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millwheel.model.catalog import Consumer
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import KeyExtractionError, PackageError
from millwheel.sdk.loading import unload_package
from millwheel.sdk.package import build_package
from millwheel.worker.process.programs import Programs
from tests.kept import kept
from tests.patience import patience

CODE = specs.CodeReference(digest="ab" * 32, entry_point="other:topology")


def consumer(key: specs.KeySpec) -> Consumer:
    return Consumer(
        IncarnationId("other.1"), "other", "counter", key, CODE, exactly_once=True, feedback=False, log=False
    )


async def missing(digest: str) -> bytes:
    raise PackageError("it imports a module that is not installed")


@pytest.mark.guarantee("G8")
async def test_a_consumer_with_unloadable_code_fails_only_its_own_keys(
    tmp_path: Path,
) -> None:
    """Regression: creating the extractor raised an error at each change of the catalog.

    No interval of any topology was opened.
    """
    programs = Programs(tmp_path, missing, lambda: None)
    spec = specs.TopologySpec(name="other", code=CODE, computations=[specs.ComputationSpec(name="counter")])
    assert not await programs.load_all([spec])
    extract = programs.extractor(consumer(specs.KeySpec(function="other:by_user")), "clicks")
    with pytest.raises(KeyExtractionError, match=r"stream 'clicks' for computation 'counter'.*not installed"):
        extract({"user": "u"})


async def test_keys_by_fields_need_no_code(tmp_path: Path) -> None:
    programs = Programs(tmp_path, missing, lambda: None)
    extract = programs.extractor(consumer(specs.KeySpec(fields=["user"])), "clicks")
    assert extract({"user": "u"}) == b"u"


@pytest.mark.guarantee("G8", section="4.2")
@pytest.mark.parametrize("rows_by_function", [False, True])
async def test_one_key_for_all_records_needs_no_code(tmp_path: Path, rows_by_function: bool) -> None:
    """What its steps drop has no effect under any key. An error would keep the records of the sending topology."""
    programs = Programs(tmp_path, missing, lambda: None)
    key = specs.KeySpec(function="other:sink", same_key="0", rows_by_function=rows_by_function)
    assert programs.extractor(consumer(key), "clicks")({"user": "u"}) == b"0"


def packaged(directory: Path, module: str, before: str = "", after: str = "") -> tuple[specs.TopologySpec, bytes]:
    """A topology in a file of its own, and its package."""
    directory.mkdir()
    path = directory / f"{module}.py"
    path.write_text(f"{before}\nimport millwheel as mw\n\ntopology = mw.Topology({module!r})\n{after}")
    made = build_package(f"{path}:topology")
    code = specs.CodeReference(digest=made.digest, entry_point=made.entry_point)
    spec = specs.TopologySpec(name=module, code=code, computations=[specs.ComputationSpec(name="c")])
    return spec, made.data


UNTIL_ALLOWED = "import os, time\nwhile not os.path.exists({!r}):\n    time.sleep(0.01)"
"""The source of a module whose import waits for a file."""


@pytest.mark.guarantee("G8", section="7.1")
async def test_a_slow_or_broken_package_delays_no_other(tmp_path: Path) -> None:
    """One package arrives slowly, one import hangs, one fails, and one is correct."""
    allowed = tmp_path / "allowed"
    packages = {
        spec.code.digest: (spec, data)
        for spec, data in (
            packaged(tmp_path / "1", "late_to_come"),
            packaged(tmp_path / "2", "slow_to_import", UNTIL_ALLOWED.format(str(allowed))),
            packaged(tmp_path / "3", "broken", "import no_such_module_anywhere"),
            packaged(tmp_path / "4", "fine"),
        )
    }
    late, slow, broken, fine = [spec for spec, _ in packages.values()]
    comes, reported = asyncio.Event(), asyncio.Event()

    async def fetch(digest: str) -> bytes:
        if digest == late.code.digest:
            await comes.wait()
        return packages[digest][1]

    programs = Programs(tmp_path / "unpacked", fetch, reported.set)
    try:
        assert not await programs.load_all([late, slow, broken, fine])
        assert programs.has(fine.code)
        assert "no_such_module_anywhere" in programs.failure(broken.code)
        assert [programs.is_loading(one.code) for one in (late, slow, broken, fine)] == [True, True, False, False]
        assert not await programs.load_all([late, slow, fine])
        comes.set()
        allowed.touch()
        async with asyncio.timeout(patience(20)):
            while not (programs.has(late.code) and programs.has(slow.code)):
                await reported.wait()
                reported.clear()
        assert await programs.load_all([late, slow, fine])
    finally:
        programs.close()
        for spec in (late, slow, broken, fine):
            unload_package(spec.code.digest)


@pytest.mark.guarantee("G13")
async def test_nothing_is_kept_of_packages_that_came_and_went(tmp_path: Path) -> None:
    programs = Programs(tmp_path, missing, lambda: None)
    for number in range(20):
        with pytest.raises(PackageError):
            await programs.load(specs.CodeReference(digest=f"{number:064x}", entry_point="m:t"))
    assert not kept(programs, asyncio.Lock)


_COUNTING = """
class Counting(mw.Computation[str, int]):
    def process_record(self, ctx, record):
        ctx.state += 1

topology.source("words", str)
topology.add(Counting, name="c", inputs={"words": mw.key(lambda word: word)})
"""


async def test_an_intervals_program_is_made_once_a_package_and_dropped(tmp_path: Path) -> None:
    """Regression: creating it took 2 ms for each interval, though most intervals have the same one."""
    spec, data = packaged(tmp_path / "once", "once", after=_COUNTING)

    async def fetch(digest: str) -> bytes:
        return data

    programs = Programs(tmp_path, fetch, lambda: None)
    consumer = Consumer(
        IncarnationId("c.1"), "once", "c", specs.KeySpec(), spec.code, exactly_once=True, feedback=False, log=False
    )
    await programs.load(spec.code)
    before = programs.compile(spec.code, "once", "c")
    assert programs.compile(spec.code, "once", "c") is before
    assert programs.extractor(consumer, "words") is programs.extractor(consumer, "words")
    programs.keep([])
    assert not programs.has(spec.code)
    await programs.load(spec.code)
    assert programs.compile(spec.code, "once", "c") is not before
    assert programs.extractor(consumer, "words")("x") == b"x"
    programs.keep([])


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_a_program_runs_under_the_names_of_original_and_fork(tmp_path: Path) -> None:
    spec, data = packaged(tmp_path / "both", "both", after=_COUNTING)

    async def fetch(digest: str) -> bytes:
        return data

    programs = Programs(tmp_path, fetch, lambda: None)
    await programs.load(spec.code)
    for name in ("both", "fork", "both"):
        compiled = programs.compile(spec.code, name, "c")
        assert list(compiled.inputs) == [f"{name}/words"]
        assert list(compiled.input_names.values()) == ["words"], "the code calls it by its own name"
        consumer = Consumer(
            IncarnationId("c.1"), name, "c", specs.KeySpec(), spec.code, exactly_once=True, feedback=False, log=False
        )
        assert programs.extractor(consumer, f"{name}/words")("x") == b"x"
        assert programs.decoder(spec.code, f"{name}/words") is not None
    before = [programs.compile(spec.code, name, "c") for name in ("both", "fork")]
    programs.keep([spec.code], ["both"])
    kept = [programs.compile(spec.code, name, "c") is one for name, one in zip(("both", "fork"), before, strict=True)]
    assert kept == [True, False], "what was made for a fork that has ended is forgotten"
    programs.keep([])


_NO_EXTRACTOR = """
class Key:
    def __call__(self, word):
        return word

    def __repr__(self):
        raise RuntimeError("only where it was written")

class Counting(mw.Computation[str, int]):
    def process_record(self, ctx, record):
        pass

topology.source("words", str)
topology.add(Counting, name="c", inputs={"words": mw.key(Key())})
"""


@pytest.mark.guarantee("G8", section="4.2")
async def test_code_without_an_extractor_spares_other_topologies(tmp_path: Path) -> None:
    """Regression: the error came where routes of all topologies are made, so this worker no longer followed the
    catalog."""
    spec, data = packaged(tmp_path / "odd", "odd", after=_NO_EXTRACTOR)

    async def fetch(digest: str) -> bytes:
        return data

    programs = Programs(tmp_path, fetch, lambda: None)
    function = specs.KeySpec(function="odd:Key")
    consumer = Consumer(
        IncarnationId("c.1"), "odd", "c", function, spec.code, exactly_once=True, feedback=False, log=False
    )
    try:
        await programs.load(spec.code)
        extract = programs.extractor(consumer, "words")
        with pytest.raises(KeyExtractionError, match=r"'words' for computation 'c'.*RuntimeError: only where"):
            extract("x")
    finally:
        programs.keep([])
