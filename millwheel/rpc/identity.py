"""Who this process is to others: the TLS files of its servers and clients, or none.

A process has one identity: its daemon's settings name it (:func:`use_tls`), or, for programs and the tasks of a Spark
job, the environment: MILLWHEEL_RPC_TLS_CA, _CERT and _KEY. Nothing here needs gRPC.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["ENVIRONMENT", "TlsFiles", "process_tls", "use_tls"]

ENVIRONMENT: Final = ("MILLWHEEL_RPC_TLS_CA", "MILLWHEEL_RPC_TLS_CERT", "MILLWHEEL_RPC_TLS_KEY")
"""The variables that name the files, where nothing else does."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: who signed everybody's certificates, the own certificate (with its chain), and its key."""

    ca: Path
    cert: Path
    key: Path


_chosen: list[TlsFiles | None] = []


def use_tls(files: TlsFiles | None) -> None:
    """Have this process speak TLS as ``files`` say, or not at all, whatever the environment says."""
    _chosen[:] = [files]


def process_tls() -> TlsFiles | None:
    """How this process speaks TLS; None: it does not. RequestError if the environment names some files, not all."""
    if _chosen:
        return _chosen[0]
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
