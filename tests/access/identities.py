"""Certificates and tokens for tests: a CA, and a key that signs tokens."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from millwheel.cli.certificate_files import CertificateAuthority, CertificateRequest, utc_now
from millwheel.rpc.identity import TlsFiles, TokenSource
from millwheel.rpc.security import client_credentials

ISSUER = "https://login.example"
AUDIENCE = "millwheel"
LOCAL = ("localhost", "127.0.0.1")


class Identities:
    """The CA and the signing key of one cluster, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority.open(folder, "test", 90, utc_now())
        self.server = self.certificate("server", ("process",), LOCAL)
        self.signer = Ed25519PrivateKey.generate()
        self.jwks = folder / "jwks.json"
        self.publish_keys("one")

    def certificate(
        self, name: str, roles: Sequence[str] = (), hosts: Sequence[str] = (), ends_in: timedelta = timedelta(days=1)
    ) -> TlsFiles:
        """A certificate, which may have ended already."""
        now = utc_now() - timedelta(days=1) + ends_in
        made = self.authority.issue(CertificateRequest(name, tuple(roles), tuple(hosts)), 1, now, True)
        return TlsFiles(self.folder / "ca.pem", made.cert, made.key)

    def publish_keys(self, kid: str) -> None:
        """Write the key set that servers check tokens by."""
        key = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(self.signer.public_key()))
        self.jwks.write_text(json.dumps({"keys": [{**key, "kid": kid, "alg": "EdDSA", "use": "sig"}]}))

    def token(self, subject: str = "ada", *, kid: str = "one", **claims: Any) -> str:
        """A token. Claims replace those that it has otherwise; None leaves one out."""
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": time.time() + 600, "jti": f"id-{subject}"}
        content = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(content, self.signer, algorithm="EdDSA", headers={"kid": kid})

    def policy(self, more: str = "") -> Path:
        """Write a policy that takes the tokens, with further lines."""
        path = self.folder / "policy.toml"
        tokens = f'[tokens]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\nalgorithms = ["EdDSA"]\njwks = "jwks.json"\n'
        written = path.with_suffix(".new")
        written.write_text(more + "\n" + tokens)
        written.replace(path)
        return path

    def without_tokens(self) -> None:
        """Write a policy that takes no tokens."""
        (self.folder / "policy.toml").write_text("certificate_roles = true\n")


def grant(who: str, roles: Sequence[str], topologies: Sequence[str] = ()) -> str:
    """A grant of a policy."""
    places = f"topologies = {json.dumps(list(topologies))}\n" if topologies else ""
    return f'[[grants]]\nwho = ["{who}"]\nroles = {json.dumps(list(roles))}\n{places}'


@asynccontextmanager
async def channel_as(address: str, files: TlsFiles, token: str = "") -> AsyncIterator[grpc.aio.Channel]:
    """A connection of one caller. The identity of this process stays as it is."""
    credentials = client_credentials(files, TokenSource(token) if token else None)
    async with grpc.aio.secure_channel(address, credentials) as channel:
        yield channel
