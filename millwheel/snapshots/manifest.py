"""The manifest of a snapshot: JSON of the message SnapshotManifest."""

from __future__ import annotations

from typing import Final

from google.protobuf import json_format

from millwheel.model.formats import NEWEST_FORMAT
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.location import MANIFEST, SnapshotFolder

__all__ = ["SNAPSHOT_FORMAT", "all_files", "decode_manifest", "encode_manifest", "read_manifest", "write_manifest"]

SNAPSHOT_FORMAT: Final = 1
"""The format of the manifest and of the files that it names."""


async def write_manifest(folder: SnapshotFolder, manifest: wire.SnapshotManifest) -> None:
    """Complete a snapshot: all its files are written."""
    await folder.write(MANIFEST, encode_manifest(manifest))


async def read_manifest(folder: SnapshotFolder) -> wire.SnapshotManifest:
    """The manifest of a snapshot; RequestError if this version cannot read the snapshot."""
    return decode_manifest(await folder.read(MANIFEST), folder.where)


def encode_manifest(manifest: wire.SnapshotManifest) -> bytes:
    """The manifest as stored."""
    return json_format.MessageToJson(manifest, preserving_proto_field_name=True, sort_keys=True).encode()


def decode_manifest(content: bytes, where: str) -> wire.SnapshotManifest:
    """What ``encode_manifest`` was given; RequestError names ``where``."""
    try:
        manifest = json_format.Parse(content, wire.SnapshotManifest(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise RequestError(
            FailureCode.DATA_LOSS, f"{where}: {MANIFEST} is damaged: {error}", reason="SNAPSHOT_DAMAGED"
        ) from error
    newer = manifest.format != SNAPSHOT_FORMAT or manifest.cluster_format > NEWEST_FORMAT
    if newer:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"{where}: MillWheel {manifest.millwheel_version} wrote it, in format {manifest.format} and of a "
            f"cluster of format {manifest.cluster_format}; this version reads {SNAPSHOT_FORMAT} and {NEWEST_FORMAT}",
            "use the version that wrote it, or a newer one",
            reason="SNAPSHOT_FORMAT_UNKNOWN",
        )
    return manifest


def all_files(manifest: wire.SnapshotManifest) -> list[wire.SnapshotFile]:
    """Every file that the manifest names."""
    found = [file for journal in manifest.journals for file in (*journal.parts, *journal.entries)]
    found += [file for rows in manifest.rows for file in rows.files]
    return [*found, *manifest.packages]
