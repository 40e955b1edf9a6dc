"""Code needs a signature where the policy lists signers: at the master, and again where a worker loads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from millwheel.cli.main import app
from millwheel.cli.signing import read_signing_key
from millwheel.config.access_policy import parse_policy
from millwheel.rpc.access.policy import AccessPolicy
from millwheel.rpc.access.signatures import refuse_unsigned, sign_package
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.topology_pb2 import CodeReference
from millwheel.worker.process.programs import Programs
from tests.access.identities import Identities
from tests.access.test_cluster import POLICY, WORDS, People
from tests.daemons.together import together

DIGEST = "ab" * 32


def signers(**keys: Ed25519PrivateKey) -> AccessPolicy:
    return AccessPolicy(signers={name: key.public_key().public_bytes_raw() for name, key in keys.items()})


def test_a_signature_of_a_listed_key_counts() -> None:
    ada, bob = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    policy = signers(ada=ada, bob=bob)
    refuse_unsigned(policy, DIGEST, sign_package(ada, DIGEST))
    refuse_unsigned(policy, DIGEST, sign_package(bob, DIGEST))
    refuse_unsigned(AccessPolicy(), DIGEST, b"")
    for signature in (b"", b"x" * 64, sign_package(ada, "cd" * 32), ada.sign(DIGEST.encode())):
        with pytest.raises(RequestError, match="is not signed") as caught:
            refuse_unsigned(policy, DIGEST, signature)
        assert (caught.value.code, caught.value.reason) == (FailureCode.PERMISSION_DENIED, "PACKAGE_NOT_SIGNED")
    with pytest.raises(RequestError, match="is not signed by a key of the policy"):
        refuse_unsigned(signers(bob=bob), DIGEST, sign_package(ada, DIGEST))


async def test_a_worker_does_not_even_fetch_unsigned_code(tmp_path: Path) -> None:
    fetched: list[str] = []

    async def fetch(digest: str) -> bytes:
        fetched.append(digest)
        return b""

    policy = signers(ada=Ed25519PrivateKey.generate())

    def admit(code: CodeReference) -> None:
        refuse_unsigned(policy, code.digest, code.signature)

    programs = Programs(tmp_path, fetch, lambda: None, admit=admit)
    with pytest.raises(RequestError, match="is not signed"):
        await programs.load(CodeReference(digest=DIGEST, entry_point="words:words"))
    assert fetched == []
    programs.close()


async def test_a_cluster_with_signers_takes_signed_code_alone(tmp_path: Path) -> None:
    key, other = tmp_path / "sign.key", tmp_path / "other.key"
    public = [
        CliRunner().invoke(app, ["certificates", "signing-key", str(file)]).stdout.strip() for file in (key, other)
    ]
    again = CliRunner().invoke(app, ["certificates", "signing-key", str(key)]).stdout.strip()
    assert again == public[0] != public[1], "a key that is there stays"
    assert parse_policy(f'[packages.signers]\nada = "{public[0]}"\n', tmp_path).signers == {
        "ada": read_signing_key(key).public_key().public_bytes_raw()
    }
    identities = Identities(tmp_path / "certificates")
    server, dev = identities.server, identities.certificate("dev")
    tls = {"rpc.tls_ca": str(server.ca), "rpc.tls_cert": str(server.cert), "rpc.tls_key": str(server.key)}
    policy = identities.policy(f'{POLICY}[packages.signers]\nada = "{public[0]}"\n')
    async with together(tmp_path, {**tls, "security.policy": str(policy)}) as cluster:
        people = People(identities, cluster)
        for more in ((), ("--sign-key", str(other))):
            error = await people.refused(dev, "topology", "submit", WORDS, *more)
            assert error["reason"] == "PACKAGE_NOT_SIGNED"
            assert json.loads((await people.run(dev, "topology", "list", "-o", "json")).out) == []
        done = await people.run(dev, "topology", "submit", WORDS, "--sign-key", str(key), "--wait", "60")
        assert done.code == 0, done.err
    done = await people.run(dev, "topology", "submit", WORDS, "--sign-key", str(server.key))
    assert done.code == 5
    assert "is not for signing code (Ed25519)" in done.err
