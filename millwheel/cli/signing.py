"""The keys that sign code packages: Ed25519, in PEM."""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from millwheel.cli.certificate_files import write_key
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["ensure_signing_key", "public_text", "read_signing_key"]


def ensure_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in a file, which is made if it does not exist."""
    if path.exists():
        return read_signing_key(path)
    key = Ed25519PrivateKey.generate()
    write_key(path, key)
    return key


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in a file. RequestError: it has none."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise _unfit(f"the key {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise _unfit(f"{path} has no private key without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unfit(f"the key in {path} is not for signing code (Ed25519)")
    return key


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public key as a policy has it."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def _unfit(message: str) -> RequestError:
    remedy = "make one by `millwheel certificates signing-key FILE`"
    return RequestError(FailureCode.INVALID_ARGUMENT, message, remedy, reason="SIGNING_KEY_UNFIT")
