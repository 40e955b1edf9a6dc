"""The TLS identity of this process: the TLS files of its servers and clients, or none.

A process has one identity. A daemon's settings define it (:func:`use_tls`). For other programs and the tasks of a Spark
job, the environment defines it: MILLWHEEL_RPC_TLS_CA, _CERT and _KEY. This module does not import gRPC.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["ENVIRONMENT", "TlsFiles", "process_tls", "use_tls"]

ENVIRONMENT: Final = ("MILLWHEEL_RPC_TLS_CA", "MILLWHEEL_RPC_TLS_CERT", "MILLWHEEL_RPC_TLS_KEY")
"""The variables that name the files of a process without :func:`use_tls`."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the authority of all certificates, the process's certificate (with its chain), and its private key."""

    ca: Path
    cert: Path
    key: Path

    def server_context(self, verify: ssl.VerifyMode) -> ssl.SSLContext:
        """Return the context of a server of HTTPS. ``verify``: whether a client must show a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.cert, self.key)
        context.verify_mode = verify
        return context


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
