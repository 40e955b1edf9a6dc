"""The manifest of a snapshot: JSON of the message SnapshotManifest.

That of 1 GiB of states takes 50 ms to write and as long to read, so threads do both: the event loop has other work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from google.protobuf import json_format

from millwheel.model.formats import NEWEST_FORMAT
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.chunks import CHUNKS
from millwheel.snapshots.location import MANIFEST, SnapshotFolder, SnapshotLocation

__all__ = [
    "SNAPSHOT_FORMAT",
    "all_files",
    "decode_manifest",
    "encode_manifest",
    "read_manifest",
    "reusable_chunks",
    "stored_chunks",
    "written_bytes",
]

SNAPSHOT_FORMAT: Final = 2
"""The format of the manifest and of the files that it names. In format 1, no file was shared."""
_READ: Final = (1, 2)


async def read_manifest(folder: SnapshotFolder) -> wire.SnapshotManifest:
    """The manifest of a snapshot; RequestError if this version cannot read the snapshot."""
    return await asyncio.to_thread(decode_manifest, await folder.read(MANIFEST), folder.where)


def encode_manifest(manifest: wire.SnapshotManifest) -> bytes:
    """The manifest as stored."""
    return json_format.MessageToJson(manifest, preserving_proto_field_name=True, sort_keys=True).encode()


def decode_manifest(content: bytes, where: str) -> wire.SnapshotManifest:
    """What ``encode_manifest`` was given; RequestError names ``where``.

    Invariant: no field is lost. A field that this version does not know may be one of a record of the coordinator,
    which a newer version writes without another format (docs/upgrading.md). A running master keeps such a field. A
    restore could not, so it is refused.
    """
    try:
        fields = json.loads(content)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        manifest, unknown = _parse(fields)
    except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        raise RequestError(
            FailureCode.DATA_LOSS, f"{where}: {MANIFEST} is damaged: {error}", reason="SNAPSHOT_DAMAGED"
        ) from error
    if manifest.format not in _READ or manifest.cluster_format > NEWEST_FORMAT:
        raise _unknown(
            manifest,
            where,
            f"in format {manifest.format} and of a cluster of format {manifest.cluster_format}; this version reads "
            f"{SNAPSHOT_FORMAT} and {NEWEST_FORMAT}",
        )
    if unknown is not None:
        named = str(unknown).partition("\n")[0].rstrip(".")
        raise _unknown(
            manifest, where, f"and this version does not know all that is in {MANIFEST}: {named}"
        ) from unknown
    return manifest


def _parse(fields: dict[str, Any]) -> tuple[wire.SnapshotManifest, json_format.ParseError | None]:
    """The manifest, and the error if it has a field that this version does not know."""
    try:
        return json_format.ParseDict(fields, wire.SnapshotManifest()), None
    except json_format.ParseError as error:
        return json_format.ParseDict(fields, wire.SnapshotManifest(), ignore_unknown_fields=True), error


def _unknown(manifest: wire.SnapshotManifest, where: str, why: str) -> RequestError:
    return RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"{where}: MillWheel {manifest.millwheel_version} wrote it, {why}",
        "use the version that wrote it, or a newer one",
        reason="SNAPSHOT_FORMAT_UNKNOWN",
    )


def all_files(manifest: wire.SnapshotManifest) -> list[wire.SnapshotFile]:
    """Every file that the manifest names."""
    found = [file for journal in manifest.journals for file in (*journal.parts, *journal.entries)]
    found += [file for rows in manifest.rows for file in rows.files]
    return [*found, *manifest.packages]


async def stored_chunks(folders: Iterable[SnapshotFolder]) -> set[str]:
    """The chunks that these snapshots name, by checksum. RequestError if one cannot be read."""
    found: set[str] = set()
    for folder in folders:
        found.update(file.sha256 for file in all_files(await read_manifest(folder)) if file.shared)
    return found


async def reusable_chunks(location: SnapshotLocation) -> set[str]:
    """The chunks that complete snapshots name, as far as the location has them whole.

    A chunk can be lost, by hand or with a copy of the location that is not complete. So the location is listed, too.
    What a snapshot names that cannot be read is written again.
    """
    present = {name: size for name, (size, _) in (await location.shared(CHUNKS).files()).items()}
    found: set[str] = set()
    for name in await location.names():
        with suppress(RequestError):
            files = all_files(await read_manifest(location.folder(name)))
            found.update(one.sha256 for one in files if one.shared and present.get(one.sha256) == one.size_bytes)
    return found


def written_bytes(manifest: wire.SnapshotManifest) -> int:
    """What a snapshot has written itself. In format 1 that was everything."""
    if manifest.format == 1:
        return sum(file.size_bytes for file in all_files(manifest))
    return manifest.written_bytes
