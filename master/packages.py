"""Code packages, kept in the state store under their digests: too large for a coordinator (section 7.1).

They are rows of the pseudo computation ``packages``, written under a journal of that name that the
leading master holds. Rows are named by content, so nobody can make one say something else, and the
row that says how many chunks there are is written last.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec

from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.store.contract import CorruptValueError, JournalExistsError, SequencerRefusedError, StateRow, StateStore

__all__ = ["CHUNK_BYTES", "MAX_PACKAGE_BYTES", "Packages"]

CHUNK_BYTES: Final = 512 << 10
MAX_PACKAGE_BYTES: Final = 64 << 20
_NAME: Final = "packages"
# Rows show a commit of their journal: this journal has one from birth, and never another.
_COMMIT: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class _Manifest(msgspec.Struct):
    size: int
    chunks: int


class Packages:
    """The packages, for the term of one leader."""

    def __init__(self, store: StateStore, term: int) -> None:
        """``term`` is the leadership's: terms grow, so it serves as the sequencer of the packages' journal."""
        self._store = store
        self._term = term
        self._fenced = False

    async def has(self, digest: str) -> bool:
        """Whether the whole package is here. One that is damaged is not, so that an upload mends it."""
        try:
            if await self._manifest(digest) is None:
                return False
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
        await self._fence()
        chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        for number, chunk in enumerate(chunks):
            await self._write(_chunk_key(digest, number), chunk)
        await self._write(digest.encode(), msgspec.msgpack.encode(_Manifest(len(content), len(chunks))))
        return True

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
        """Take the journal, once in the term. A store may drop what a master without it writes."""
        if self._fenced:
            return
        with suppress(JournalExistsError):
            await self._store.create_journal(_NAME, commit=_COMMIT)
        try:
            await self._store.fence(_NAME, self._term)
        except SequencerRefusedError as error:
            if error.sequencer != self._term:
                raise RequestError(
                    FailureCode.UNAVAILABLE, "this master no longer leads", "try again", reason=NOT_LEADING
                ) from error
        self._fenced = True

    async def _write(self, key: bytes, blob: bytes) -> None:
        await self._store.write_states(_NAME, _NAME, self._term, [StateRow(key, _COMMIT, blob)])


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
