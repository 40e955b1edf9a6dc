"""The forms of a snapshot's files (docs/snapshots.md)."""

from __future__ import annotations

from typing import Final

from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.files import PartItem, RowItem, decode_items, encode_items
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, decode_manifest, encode_manifest

from .forms import StoredForm
from .messages import sample


def _manifest() -> wire.SnapshotManifest:
    made = sample(wire.SnapshotManifest.DESCRIPTOR)
    assert isinstance(made, wire.SnapshotManifest)
    made.format, made.cluster_format = SNAPSHOT_FORMAT, 1
    return made


FORMS: Final = (
    StoredForm("snapshot/manifest", _manifest(), encode_manifest, lambda blob: decode_manifest(blob, "the manifest")),
    StoredForm(
        "snapshot/parts", [PartItem("meta/0", 3, 4, b"part")], encode_items, lambda blob: decode_items(blob, PartItem)
    ),
    StoredForm("snapshot/rows", [RowItem(b"key", 4, b"state")], encode_items, lambda blob: decode_items(blob, RowItem)),
    StoredForm("snapshot/entries", [b"entry"], encode_items, lambda blob: decode_items(blob, bytes)),
)
"""Every form."""
