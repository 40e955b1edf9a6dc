"""The progress of a shard of a sink of files: which batch comes next. Pure.

It is raised before the files of a batch are written, and not after. So a batch whose files are there in part is always
the newest one of the progress.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millwheel.connectors.files.errors import FilesError
from millwheel.connectors.files.layout import Layout
from millwheel.connectors.progress import ShardProgress, follows, is_over, without_batch
from millwheel.connectors.sink import SinkBatch, SinkShard

__all__ = ["FOLDER", "FilesProgress", "decode_progress", "file_name", "progress_path", "raised"]

FOLDER: Final = "_millwheel"
"""The folder of what is no data. Programs that read a folder of data leave out what begins with ``_``."""


class FilesProgress(ShardProgress, frozen=True, omit_defaults=True):
    """The newest batch of a shard, of which files may be there."""

    layout: Layout | None = None
    """Where its files are. None: an earlier version began it, or a person wrote the progress."""


decode_progress: Final = msgspec.json.Decoder(FilesProgress).decode
"""Made here, because shards decode theirs on threads of their own: see ``millwheel.sdk.known_types``."""


def progress_path(place: SinkShard) -> str:
    """Where the progress of a shard is, below the folder of the sink."""
    return f"{FOLDER}/{_plain(place.sink)}/{place.shard}.json"


def file_name(place: SinkShard, number: int, ending: str) -> str:
    """The name of a file of a batch. The same batch always has the same one.

    >>> file_name(SinkShard("shop/orders-lake", 0, 1, 1767268800000000), 17, "parquet")
    'shop.orders-lake-0-1767268800000000-000000000017.parquet'
    """
    return f"{_plain(place.sink)}-{place.shard}-{place.run}-{number:012}.{ending}"


def raised(
    found: FilesProgress | None, place: SinkShard, batch: SinkBatch[Any], where: str, layout: Layout
) -> FilesProgress:
    """The progress with the batch. It is ``found`` itself if the batch was begun before.

    *Invariant (G1): a batch has one layout.* Otherwise it would be there twice after an update of the format or of the
    folders, if its former process died between the progress and the commit.

    Args:
        found: The progress now. None: there is none.
        place: The shard.
        batch: What is to be written.
        where: The place of the progress, for people.
        layout: Where the files of the batch are, if it was not begun before.

    Raises:
        FilesError: The batch does not follow, because the topology or the folder was set back.
    """
    if found is not None and (found.run, found.id) == (place.run, batch.id):
        return found
    if not follows(found, place, batch):
        raise FilesError(_apart(found, place, batch, where))
    return FilesProgress(place.run, batch.number, batch.id, layout)


def _apart(found: FilesProgress | None, place: SinkShard, batch: SinkBatch[Any], where: str) -> str:
    """What to do where the folder stands elsewhere than the topology."""
    former = msgspec.json.encode(without_batch(place, batch)).decode()
    if found is None:
        return (
            f"{where} is not there, and batch {batch.number} of {place.sink}, shard {place.shard}, comes next: the "
            "folder was emptied, or is another one. Put the former one back, or write to a sink of another name. Or "
            f"write {former} to that file: then the sink goes on, and what is missing stays so"
        )
    if found.run > place.run:
        return is_over(place, f"write {former} to {where}")
    here = f"{where} has batch {found.batch} of {place.sink}, shard {place.shard}"
    if batch.after and (found.run < place.run or found.batch < batch.number - 1):
        return (
            f"{here}, and batch {batch.number} comes next: the folder was set back to an earlier time, and the "
            "topology was not. Put the folder's later state back, or write to a sink of another name. Or write "
            f"{former} to that file: then the sink goes on, and what is missing stays so"
        )
    first = file_name(place, batch.number, "*")
    return (
        f"{here}, and another batch {batch.number} comes next: the topology was set back to an earlier time, and the "
        f"folder was not. Delete the files of this shard from {first} on, in all folders: their records come again. "
        f"Then write {former} to that file. Or write to a sink of another name"
    )


def _plain(sink: str) -> str:
    """The name of a sink in names of files. No name has a dot, except that of a stream."""
    return sink.replace("/", ".")
