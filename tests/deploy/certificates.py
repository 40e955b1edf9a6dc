"""Certificates of one authority, for addresses of this machine: as an operator makes them with openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.patience import patience


def make(folder: Path, addresses: Sequence[str]) -> None:
    """Write ca.crt, tls.crt and tls.key. The certificate is for servers and clients at the addresses."""
    folder.mkdir(parents=True)
    names = ",".join(["DNS:localhost", "IP:127.0.0.1", *(f"IP:{address}" for address in addresses)])
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
    _openssl(
        folder,
        *("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-days", "3650", "-subj", "/CN=a test"),
        *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign"),
    )
    _openssl(folder, "req", *curve, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=millwheel")
    (folder / "extensions").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl(
        folder,
        *("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "tls.crt", "-days", "3650", "-extfile", "extensions"),
    )


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, timeout=patience(30))
    assert done.returncode == 0, done.stderr
