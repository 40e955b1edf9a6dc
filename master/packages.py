"""Code packages, stored in the state store under their digests: they are too large for a coordinator (section 7.1).

Packages are rows of the pseudo computation ``packages``. They are written under a journal of that name, which the
leading master fences. A row is named by its content, so no writer can change its meaning. The manifest row, which
holds the number of chunks, is written last.

The journal's base holds an index of the packages. Each change of the index is an append. Rows are written or emptied
after it, with its commit number. So a collected package may be uploaded again, and late writes of a deposed master
lose (G3). An append may give up rows that are not emptied yet. The next master that fences the journal empties them
first, before it reports any package as present.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Container
from contextlib import suppress
from typing import Final

import msgspec

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.store.contract import (
    Append,
    CorruptValueError,
    JournalExistsError,
    PartId,
    SequencerRefusedError,
    StateRow,
    StateStore,
    StoreError,
)

__all__ = ["CHUNK_BYTES", "EMPTY_DIGEST", "MAX_PACKAGE_BYTES", "Packages"]

CHUNK_BYTES: Final = 512 << 10
MAX_PACKAGE_BYTES: Final = 64 << 20
EMPTY_DIGEST: Final = hashlib.sha256().hexdigest()
"""The digest of the package without content."""
_NAME: Final = "packages"
_INDEX: Final = "index"
_FIRST_COMMIT: Final = 1
"""The commit number of the new journal."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class _Manifest(msgspec.Struct):
    size: int
    chunks: int


class _Index(msgspec.Struct):
    """The packages' index.

    ``stored``: the number of chunks by digest. ``going``: packages given up, each with its number of chunks and the
    commit that gave it up.
    """

    stored: dict[str, int] = {}
    going: dict[str, tuple[int, int]] = {}


class Packages:
    """The packages, for one leader's term."""

    def __init__(self, store: StateStore, term: int) -> None:
        """``term`` is the leadership's. Terms grow, so the term serves as the sequencer of the packages' journal."""
        self._store = store
        self._term = term
        self._fenced = False
        self._commit = 0
        self._index = _Index()
        self._lock = asyncio.Lock()
        self._wanted_at: dict[str, float] = {}
        """The time of a package's last request, upload, or mention by a topology."""

    async def has(self, digest: str) -> bool:
        """Return whether the whole package is stored. A damaged one counts as missing, so that an upload repairs it."""
        _check_digest(digest)
        async with self._lock:
            await self._fence()
        self._touch(digest)
        try:
            manifest = await self._manifest(digest)
            if manifest is None:
                return False
            self._index.stored.setdefault(digest, manifest.chunks)
            async for _ in self.get(digest):
                pass
        except RequestError as error:
            if error.code is not FailureCode.DATA_LOSS:
                raise
            return False
        return True

    async def put(self, digest: str, content: bytes) -> bool:
        """Store a package. Return False if it was present; RequestError if it does not match its digest."""
        _check_digest(digest)
        if await self.has(digest):
            return False
        actual = hashlib.sha256(content).hexdigest()
        if actual != digest:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"the code package's digest is {actual}, not {digest} as announced",
                "it was damaged under way or changed while it was read: upload it again",
                reason="DIGEST_MISMATCH",
            )
        chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        async with self._lock:
            self._index.stored[digest] = len(chunks)
            commit = await self._append()
            for number, chunk in enumerate(chunks):
                await self._write(_chunk_key(digest, number), chunk, commit)
            await self._write(digest.encode(), msgspec.msgpack.encode(_Manifest(len(content), len(chunks))), commit)
        self._touch(digest)
        return True

    async def collect(self, named: Container[str], idle: float) -> list[str]:
        """Drop the packages that are not in ``named`` and had no request for ``idle`` seconds of this term.

        Returns the dropped packages. A client that submits a topology requests its package just before.
        """
        async with self._lock:
            await self._fence()
            now = asyncio.get_running_loop().time()
            for digest in self._index.stored:
                if digest in named:
                    self._wanted_at[digest] = now
            gone = [
                one
                for one in self._index.stored
                if one not in named and now - self._wanted_at.setdefault(one, now) >= idle
            ]
            # A package whose upload is in progress is not stored yet.
            fresh = {one: at for one, at in self._wanted_at.items() if one in self._index.stored or now - at < idle}
            self._wanted_at = fresh
            if gone:
                commit = self._commit + 1
                for digest in gone:
                    self._index.going[digest] = self._index.stored.pop(digest), commit
                await self._append()
                await self._empty()
        return gone

    def _touch(self, digest: str) -> None:
        self._wanted_at[digest] = asyncio.get_running_loop().time()

    async def get(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the package in chunks. RequestError (NOT_FOUND) if it is missing, DATA_LOSS if it is damaged."""
        _check_digest(digest)
        manifest = await self._manifest(digest)
        if manifest is None:
            raise RequestError(
                FailureCode.NOT_FOUND,
                f"there is no code package {digest}",
                "upload it first; `millwheel topology submit` does so",
                reason="PACKAGE_UNKNOWN",
            )
        hasher = hashlib.sha256()
        for number in range(manifest.chunks):
            row = await self._row(digest, _chunk_key(digest, number))
            chunk = b"" if row is None else row.blob
            hasher.update(chunk)
            if number == manifest.chunks - 1 and hasher.hexdigest() != digest:
                raise _damaged(digest, "its chunks do not make up what the digest says")
            yield chunk

    async def _manifest(self, digest: str) -> _Manifest | None:
        _check_digest(digest)
        row = await self._row(digest, digest.encode())
        try:
            return None if row is None else msgspec.msgpack.decode(row.blob, type=_Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(digest, str(error)) from error

    async def _row(self, digest: str, key: bytes) -> StateRow | None:
        try:
            (row,) = await self._store.read_states(IncarnationId(_NAME), [key])
        except CorruptValueError as error:
            raise _damaged(digest, str(error)) from error
        return row

    async def _fence(self) -> None:
        """Fence the journal once in the term, and finish what was begun. A deposed master fails here."""
        if self._fenced:
            return
        with suppress(JournalExistsError):
            await self._store.create_journal(_NAME, commit=_FIRST_COMMIT)
        try:
            head = await self._store.fence(_NAME, self._term)
        except SequencerRefusedError as error:
            if error.sequencer != self._term:
                raise _deposed() from error
            head = await self._store.read_head(_NAME)
        self._commit = head.commit
        if head.parts:
            (blob,) = await self._store.read_parts(_NAME, head.parts)
            self._index = msgspec.msgpack.decode(blob, type=_Index)
        await self._empty()
        self._fenced = True

    async def _append(self) -> int:
        """Commit the present index. Return the commit number for writing rows. The caller holds the lock."""
        await self._fence()
        commit = self._commit + 1
        part = PartId(_INDEX, self._term, commit)
        await self._store.write_part(_NAME, part, msgspec.msgpack.encode(self._index))
        try:
            await self._store.append(_NAME, Append(self._term, commit, commit, (part,), b""))
        except SequencerRefusedError as error:
            if (error.sequencer, error.commit) != (self._term, commit):
                raise _deposed() from error
        except StoreError:
            # It is unknown whether the append was applied, so the journal is fenced and read again first.
            self._fenced = False
            raise
        await self._store.delete_parts(_NAME, [one for one in await self._store.list_parts(_NAME) if one != part])
        await self._store.delete_entries(_NAME, commit + 1)
        self._commit = commit
        return commit

    async def _empty(self) -> None:
        """Empty the rows of packages given up. Idempotent: the rows carry the commit that gave them up."""
        for digest, (chunks, commit) in list(self._index.going.items()):
            # The manifest row goes first. Without it, no reader looks at the chunks.
            await self._write(digest.encode(), b"", commit)
            for number in range(chunks):
                await self._write(_chunk_key(digest, number), b"", commit)
            # The next append removes it from the stored index.
            self._index.going.pop(digest, None)

    async def _write(self, key: bytes, blob: bytes, commit: int) -> None:
        await self._store.write_states(IncarnationId(_NAME), _NAME, self._term, [StateRow(key, commit, blob)])


def _deposed() -> RequestError:
    return RequestError(FailureCode.UNAVAILABLE, "this master no longer leads", "try again", reason=NOT_LEADING)


def _damaged(digest: str, why: str) -> RequestError:
    return RequestError(
        FailureCode.DATA_LOSS,
        f"the stored code package {digest} is damaged: {why}",
        "upload it again (`millwheel topology submit` or `update` from the same source does so), or restore the state "
        "store from a snapshot",
        reason="PACKAGE_DAMAGED",
    )


def _chunk_key(digest: str, number: int) -> bytes:
    return f"{digest}/{number:04}".encode()


def _check_digest(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{digest!r} is not the digest of a code package",
            "give its SHA-256 in lower-case hex",
            reason="DIGEST_INVALID",
        )
