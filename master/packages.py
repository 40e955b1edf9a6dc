"""Code packages, kept in the state store under their digests: too large for a coordinator (section 7.1).

They are rows of the pseudo computation ``packages``, written under a journal of that name that the
leading master holds. Rows are named by content, so nobody can make one say something else, and the
row that says how many chunks there are is written last.

The journal's base has an index of them, and each change of it is an append: rows are written, or emptied, with its
commit number afterwards. So a package that was collected may be uploaded again, and a deposed master's late writes
lose (G3). What an append has given up, and nobody has emptied yet, is emptied by whoever holds the journal next, before
it says of any package that it is here.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Container
from contextlib import suppress
from typing import Final

import msgspec

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

__all__ = ["CHUNK_BYTES", "MAX_PACKAGE_BYTES", "Packages"]

CHUNK_BYTES: Final = 512 << 10
MAX_PACKAGE_BYTES: Final = 64 << 20
_NAME: Final = "packages"
_INDEX: Final = "index"
_COMMIT: Final = 1
"""That the journal is born with."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class _Manifest(msgspec.Struct):
    size: int
    chunks: int


class _Index(msgspec.Struct):
    """Chunks by digest, and what is given up: its chunks, and the commit that gave it up."""

    stored: dict[str, int] = {}
    going: dict[str, tuple[int, int]] = {}


class Packages:
    """The packages, for the term of one leader."""

    def __init__(self, store: StateStore, term: int) -> None:
        """``term`` is the leadership's: terms grow, so it serves as the sequencer of the packages' journal."""
        self._store = store
        self._term = term
        self._fenced = False
        self._commit = 0
        self._index = _Index()
        self._lock = asyncio.Lock()
        self._wanted_at: dict[str, float] = {}
        """When a package was last asked for, uploaded, or named by a topology."""

    async def has(self, digest: str) -> bool:
        """Whether the whole package is here. One that is damaged is not, so that an upload mends it."""
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
        """Keep a package; False if it was here already. RequestError if it is too large or not what it says."""
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
        """Drop the packages that are not ``named``, and that nobody has asked for in ``idle`` seconds of this term.

        Returns those that went. Who submits a topology has asked for its package just before.
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
            # What is being uploaded is not stored yet.
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
        """The package in chunks. RequestError (NOT_FOUND) if it is not here, DATA_LOSS if it is damaged."""
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
            (row,) = await self._store.read_states(_NAME, [key])
        except CorruptValueError as error:
            raise _damaged(digest, str(error)) from error
        return row

    async def _fence(self) -> None:
        """Take the journal, once in the term, and finish what was begun. A deposed master gets no further than here."""
        if self._fenced:
            return
        with suppress(JournalExistsError):
            await self._store.create_journal(_NAME, commit=_COMMIT)
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
        """Commit the index as it now stands, with the number that rows are written with. The lock is held."""
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
            # Nobody knows whether it was applied: the journal is taken up anew before anything else is done.
            self._fenced = False
            raise
        await self._store.delete_parts(_NAME, [one for one in await self._store.list_parts(_NAME) if one != part])
        await self._store.delete_entries(_NAME, commit + 1)
        self._commit = commit
        return commit

    async def _empty(self) -> None:
        """Empty the rows of what was given up. Done again it changes nothing: the commit is the one that gave it up."""
        for digest, (chunks, commit) in list(self._index.going.items()):
            # The row that says how many there are goes first: without it the others are not looked at.
            await self._write(digest.encode(), b"", commit)
            for number in range(chunks):
                await self._write(_chunk_key(digest, number), b"", commit)
            # The next append forgets it.
            self._index.going.pop(digest, None)

    async def _write(self, key: bytes, blob: bytes, commit: int) -> None:
        await self._store.write_states(_NAME, _NAME, self._term, [StateRow(key, commit, blob)])


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
