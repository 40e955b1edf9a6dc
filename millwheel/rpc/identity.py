"""The identity of this process: the TLS files of its servers and clients, or none, and the token of its clients.

A process has one identity. A daemon's settings define it (:func:`use_tls`). For other programs and the tasks of a Spark
job, the environment defines it: MILLWHEEL_RPC_TLS_CA, _CERT and _KEY, and MILLWHEEL_TOKEN or MILLWHEEL_TOKEN_FILE.
This module does not import gRPC.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = [
    "ENVIRONMENT",
    "TOKEN_ENVIRONMENT",
    "TlsFiles",
    "TokenSource",
    "process_tls",
    "process_token",
    "use_tls",
    "use_token",
]

ENVIRONMENT: Final = ("MILLWHEEL_RPC_TLS_CA", "MILLWHEEL_RPC_TLS_CERT", "MILLWHEEL_RPC_TLS_KEY")
"""The variables that name the files of a process without :func:`use_tls`."""


TOKEN_ENVIRONMENT: Final = ("MILLWHEEL_TOKEN", "MILLWHEEL_TOKEN_FILE")
"""The variables that give the token of a process without :func:`use_token`: the token, or the file that has it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the authority of all certificates, the process's certificate (with its chain), and its private key."""

    ca: Path
    cert: Path
    key: Path

    def stamp(self) -> tuple[int, ...]:
        """Return what changes when one of the files is replaced. OSError: one is missing."""
        return tuple(path.stat().st_mtime_ns for path in (self.ca, self.cert, self.key))

    def require_fitting(self) -> None:
        """Raise OSError if a file cannot be read, or the key is not that of the certificate."""
        self._new_context()

    def server_context(self, verify: ssl.VerifyMode) -> ssl.SSLContext:
        """Return the context of a server of HTTPS. ``verify``: whether a client must show a certificate.

        Each handshake looks at the files. If they have changed and fit together, later ones use them.
        """
        seen, context = self.stamp(), self._new_context()
        context.verify_mode = verify

        def renew(_: object, name: str | None, context: ssl.SSLContext) -> None:
            nonlocal seen
            with suppress(OSError):  # they are being copied
                if (stamp := self.stamp()) != seen:
                    self.require_fitting()
                    context.load_verify_locations(self.ca)
                    context.load_cert_chain(self.cert, self.key)
                    seen = stamp

        context.sni_callback = renew
        return context

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where a bearer token is: in ``text``, or in a file that is read for each call, so that it may be renewed."""

    text: str = field(default="", repr=False)
    file: Path | None = None

    def read(self) -> str:
        """Return the token. RequestError if the file cannot be read, or has no token."""
        text = self.text
        if self.file is not None:
            try:
                text = self.file.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise _no_token(f"the token file {self.file} cannot be read", error) from error
        token = text.strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            place = f"the token file {self.file}" if self.file is not None else "the token"
            raise _no_token(f"{place} has no token in one line", None)
        return token


def _no_token(what: str, error: Exception | None) -> RequestError:
    why = f": {error.strerror}" if isinstance(error, OSError) else ""
    remedy = f"see --token-file and {TOKEN_ENVIRONMENT[1]}, or --token and {TOKEN_ENVIRONMENT[0]}"
    return RequestError(FailureCode.INVALID_ARGUMENT, what + why, remedy, reason="TOKEN_UNREADABLE")


chosen_token: list[TokenSource | None] = []
"""What ``use_token`` has set. Empty: the environment decides."""


def use_token(source: TokenSource | None) -> None:
    """Set where the token of this process's clients is, or that they send none. The environment is then ignored."""
    chosen_token[:] = [source]


def process_token() -> TokenSource | None:
    """Return where this process's token is, or None without a token."""
    if chosen_token:
        return chosen_token[0]
    text, file = (os.environ.get(name, "") for name in TOKEN_ENVIRONMENT)
    if text:
        return TokenSource(text)
    return TokenSource(file=Path(file).expanduser()) if file else None


chosen: list[TlsFiles | None] = []
"""What ``use_tls`` has set. Empty: the environment decides."""


def use_tls(files: TlsFiles | None) -> None:
    """Set the TLS identity of this process: ``files``, or no TLS. The environment is then ignored."""
    chosen[:] = [files]


def process_tls() -> TlsFiles | None:
    """Return this process's TLS files, or None without TLS. RequestError if the environment names only some files."""
    if chosen:
        return chosen[0]
    named = [os.environ.get(name, "") for name in ENVIRONMENT]
    if not any(named):
        return None
    if missing := [name for name, path in zip(ENVIRONMENT, named, strict=True) if not path]:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"TLS is mutual and takes three files, but {' and '.join(missing)} is not set",
            "name the cluster's CA, a certificate and its key, all in PEM",
        )
    return TlsFiles(*(Path(path).expanduser() for path in named))
