"""Signatures of code packages: Ed25519, over the package's digest, by a key that the policy lists."""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from millwheel.rpc.access.policy import AccessPolicy
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["refuse_unsigned", "sign_package"]

_PURPOSE: Final = b"millwheel code package v1\n"
"""A signature for something else does not count here, and this one nowhere else."""


def sign_package(key: Ed25519PrivateKey, digest: str) -> bytes:
    """Return the signature of the package with this SHA-256 in hex."""
    return key.sign(_PURPOSE + digest.encode())


def refuse_unsigned(policy: AccessPolicy, digest: str, signature: bytes) -> None:
    """Raise RequestError (PERMISSION_DENIED) if the policy lists signers and none of them has signed the package."""
    if not policy.signers:
        return
    text = _PURPOSE + digest.encode()
    for key in policy.signers.values():
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
        except InvalidSignature:
            continue
        return
    what = "is not signed" if not signature else "is not signed by a key of the policy"
    raise RequestError(
        FailureCode.PERMISSION_DENIED,
        f"the code package {digest} {what}",
        f"sign it by --sign-key, with a key of {', '.join(sorted(policy.signers))} (packages.signers of the policy)",
        reason="PACKAGE_NOT_SIGNED",
    )
