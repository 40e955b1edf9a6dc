"""A snapshot that is damaged, incomplete or of another version is not taken for a whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.chunks import CHUNKS, ChunkWriter
from millwheel.snapshots.copying import copy_journal, copy_rows
from millwheel.snapshots.files import read_items
from millwheel.snapshots.location import MANIFEST, SnapshotFolder, SnapshotLocation
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, all_files, encode_manifest
from millwheel.snapshots.verifying import verify_snapshot
from millwheel.store.contract import Append, StateRow
from millwheel.store.memory import MemoryStore
from tests.snapshots.test_renaming import Reminder, worked
from tests.worker.interval.driver import IntervalDriver

JOURNAL, INCARNATION = "test.1.j1", IncarnationId("test.1")


async def written(place: Path) -> SnapshotFolder:
    """A whole snapshot of one interval: a base at commit 5, the entries of five more commits, a row and a package."""
    driver = worked(IntervalDriver(Reminder()))
    base = driver.base().parts
    worked(driver)
    store = MemoryStore()
    await store.create_journal(JOURNAL)
    await store.fence(JOURNAL, 7)
    for part, blob in base.items():
        await store.write_part(JOURNAL, part, blob)
    for number, entry in enumerate(driver.entries, 1):
        point, parts = (0, ()) if number < 5 else (5, tuple(sorted(base)))
        await store.append(JOURNAL, Append(7, number, point, parts, entry))
    await store.write_states(INCARNATION, JOURNAL, 7, [StateRow(b"key-1", 4, b"state")])
    folder = SnapshotLocation(str(place)).folder("s")
    manifest = wire.SnapshotManifest(format=SNAPSHOT_FORMAT, name="s", cluster_format=1)
    manifest.maps.add(incarnation=INCARNATION)
    head, writer = await store.read_head(JOURNAL), ChunkWriter(folder.location)
    manifest.journals.append(await copy_journal(store, JOURNAL, head, 9, writer, "journal-1"))
    manifest.rows.append(await copy_rows(store, INCARNATION, writer, "rows-1"))
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    manifest.packages.append(await writer.write(f"package-{digest}", b"foo"))
    await folder.write(MANIFEST, encode_manifest(manifest))
    return folder


async def test_a_whole_snapshot_is_verified(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    found = await verify_snapshot(folder)
    assert found.files == len(all_files(found.manifest)) == 4
    assert (found.entries, found.rows) == (4, 1), "entry 10 is of after the cut"
    assert found.parts > 0
    assert await SnapshotLocation(str(tmp_path)).names() == ["s"]
    assert [blob async for blob in read_items(folder, found.manifest.journals[0].entries, bytes)]


async def test_each_damaged_byte_is_found_and_its_file_named(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    files = sorted((tmp_path / CHUNKS).iterdir())
    assert len(files) == 4
    for file in files:
        content = file.read_bytes()
        for at in range(0, len(content), max(1, len(content) // 7)):
            file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(RequestError, match=file.name) as found:
                await verify_snapshot(folder)
            assert found.value.code is FailureCode.DATA_LOSS
        file.unlink()
        with pytest.raises(RequestError, match=file.name) as found:
            await verify_snapshot(folder)
        assert found.value.code is FailureCode.NOT_FOUND
        file.write_bytes(content)
    await verify_snapshot(folder)


async def test_a_snapshot_without_its_manifest_is_none(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    (tmp_path / "s" / MANIFEST).unlink()
    assert not await folder.exists()
    assert await SnapshotLocation(str(tmp_path)).names() == []


async def test_a_snapshot_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    manifest = tmp_path / "s" / MANIFEST
    fields = json.loads(manifest.read_text())
    for field in ("format", "cluster_format"):
        manifest.write_text(json.dumps({**fields, field: 99}))
        with pytest.raises(RequestError, match="99") as refused:
            await verify_snapshot(folder)
        assert refused.value.reason == "SNAPSHOT_FORMAT_UNKNOWN"
    manifest.write_text("{")
    with pytest.raises(RequestError, match="is damaged"):
        await verify_snapshot(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tomorrow",), 1),
        (("topology", "tomorrow"), {"x": "y"}),
        (("topology", "state"), "TOPOLOGY_STATE_OF_TOMORROW"),
        (("journals", 0, "tomorrow"), []),
        (("maps", 0, "map", "tomorrow"), True),
    ],
)
async def test_a_field_of_a_newer_version_is_not_lost(tmp_path: Path, path: tuple[Any, ...], value: object) -> None:
    """A restore would make the topology without it."""
    folder = await written(tmp_path)
    manifest = tmp_path / "s" / MANIFEST
    fields = json.loads(manifest.read_text())
    fields["millwheel_version"] = "9.1"
    inner = fields
    for step in path[:-1]:
        inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
    inner[path[-1]] = value
    manifest.write_text(json.dumps(fields))
    with pytest.raises(RequestError, match=r"MillWheel 9\.1 wrote it.*(tomorrow|TOMORROW)") as refused:
        await verify_snapshot(folder)
    assert (refused.value.code, refused.value.reason) == (FailureCode.FAILED_PRECONDITION, "SNAPSHOT_FORMAT_UNKNOWN")


@pytest.mark.parametrize("content", ["[]", '"x"', '{"format": "x"}', '{"format": 1, "maps": 3}', "\xff"])
async def test_a_manifest_of_another_shape_is_damaged(tmp_path: Path, content: str) -> None:
    folder = await written(tmp_path)
    (tmp_path / "s" / MANIFEST).write_bytes(content.encode("latin-1"))
    with pytest.raises(RequestError, match="is damaged"):
        await verify_snapshot(folder)


async def test_a_missing_entry_is_found(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    manifest = tmp_path / "s" / MANIFEST
    fields = json.loads(manifest.read_text())
    fields["journals"][0]["commit"] = "11"
    manifest.write_text(json.dumps(fields))
    with pytest.raises(RequestError, match="its last entry is 9, and 11 is needed"):
        await verify_snapshot(folder)


async def test_locations_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for text in ("", "unknown://x", "file:///proc/1/x"):
        with pytest.raises(RequestError):
            await SnapshotLocation(text).folder("s").write("x", b"")
    for name in ("", "..", "a/b", ".hidden", "a b"):
        with pytest.raises(RequestError, match="no name of a snapshot"):
            SnapshotLocation(str(tmp_path)).folder(name)
    assert await SnapshotLocation(str(tmp_path / "nothing here")).names() == []


async def test_a_url_of_a_file_is_a_directory(tmp_path: Path) -> None:
    folder = SnapshotLocation(f"file://{tmp_path}/with%20space").folder("s")
    await folder.write("x", b"content")
    assert (tmp_path / "with space" / "s" / "x").read_bytes() == b"content"
    assert await folder.read("x") == b"content"


async def test_an_object_store_has_folders_too() -> None:
    location = SnapshotLocation("memory:///")
    for name in ("b", "a", "incomplete"):
        await location.folder(name).write("rows-1", name.encode())
    for name in ("b", "a"):
        manifest = wire.SnapshotManifest(format=SNAPSHOT_FORMAT, name=name)
        await location.folder(name).write(MANIFEST, encode_manifest(manifest))
    assert await location.names() == ["a", "b"]
    assert await location.folder("b").read("rows-1") == b"b"
    with pytest.raises(RequestError, match="not found"):
        await location.folder("b").read("rows-2")
