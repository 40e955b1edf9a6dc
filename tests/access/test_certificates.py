"""``millwheel certificates``, daemons with its files, and what is said before a certificate ends."""

from __future__ import annotations

import json
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from millwheel.cli.certificate_files import utc_now
from millwheel.cli.main import app
from millwheel.config import ConfigError
from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.access.credentials import of_certificate
from millwheel.rpc.access.policy import ROLES
from millwheel.rpc.failures import FailureCode
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.own_certificate import own_certificate_problem
from millwheel.server.access import authorization_of
from millwheel.server.certificate_end import certificate_warnings, register_certificate
from tests.access.identities import Identities, grant
from tests.daemons.process import DaemonProcess
from tests.daemons.test_processes import embedded

RPC = Path(__file__).parents[1] / "rpc" / "certificates"
OLD = TlsFiles(RPC / "one-ca.pem", RPC / "one.pem", RPC / "one.key")
"""A certificate of a cluster of an earlier version: it names no role."""


def run(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["certificates", *words, "-o", "json"])
    assert done.exit_code == code or done.exception is not None, done.output
    return json.loads(done.stdout) if code == 0 else done.exception


def test_one_command_makes_all_and_later_calls_add(tmp_path: Path) -> None:
    place = str(tmp_path / "certificates")
    made = run("create", place, "--host", "alpha.example,10.0.0.1", "--person", "ada:admin", "--person", "bob")
    assert [one["name"] for one in made] == [
        "millwheel", "master.alpha.example", "authority.alpha.example", "worker.alpha.example", "ada", "bob",
    ]  # fmt: skip
    assert all(one["made"] for one in made)
    for one in made:
        assert stat.S_IMODE(Path(one["key"]).stat().st_mode) == 0o600, "only its user reads a key"
    before = {one["name"]: Path(one["certificate"]).read_bytes() for one in made}
    again = run("create", place, "--host", "beta", "--daemon", "worker", "--person", "bob")
    assert {one["name"]: one["made"] for one in again} == {"millwheel": False, "worker.beta": True, "bob": False}
    (renewed,) = run("create", place, "--person", "bob", "--renew")[1:]
    assert renewed["made"]
    assert Path(renewed["certificate"]).read_bytes() != before["bob"]
    assert Path(made[0]["certificate"]).read_bytes() == before["millwheel"], "the CA stays"


def test_a_certificate_is_shown_with_what_a_policy_names(tmp_path: Path) -> None:
    run("create", str(tmp_path), "--host", "alpha,10.0.0.1", "--days", "10")
    (shown,) = run("show", str(tmp_path / "worker.alpha.pem"))
    assert shown["name"] == "certificate:worker.alpha"
    assert shown["roles"] == ["process"]
    assert {"unit:millwheel-process", "name:alpha", "name:10.0.0.1"} <= set(shown["groups"])
    assert (shown["days_left"], shown["expired"]) == (9, False)
    assert "private key" in str(run("show", str(tmp_path / "worker.alpha.key"), code=5))


@pytest.mark.parametrize("person", ["ada:king", "ada:process", "../ada", "ca", ""])
def test_a_person_has_a_name_and_roles_of_people(tmp_path: Path, person: str) -> None:
    run("create", str(tmp_path), "--person", person, code=2)
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_half_a_ca_is_not_replaced(tmp_path: Path) -> None:
    run("create", str(tmp_path))
    (tmp_path / "ca.key").unlink()
    assert "ca.key is missing" in str(run("create", str(tmp_path), code=6))


def test_a_certificate_that_ends_is_announced(tmp_path: Path) -> None:
    identities = Identities(tmp_path)
    files = identities.certificate("worker", ("process",), ends_in=timedelta(days=12))
    now = time.time()
    (warning,) = certificate_warnings(files, now)
    assert f"the certificate {files.cert} ends on " in warning
    assert ", in 11 days: make a new one" in warning
    warning = certificate_warnings(files, now + 20 * 86_400)[0]
    assert "has ended on " in warning
    lasts = identities.certificate("w", ends_in=timedelta(days=31))
    assert certificate_warnings(lasts, now) == ()
    missing = TlsFiles(tmp_path / "none.pem", tmp_path / "none.pem", files.key)
    assert certificate_warnings(missing, now) == ()
    registry = CollectorRegistry()
    register_certificate(registry, files)
    end = registry.get_sample_value("millwheel_certificate_end_timestamp_seconds")
    assert end is not None
    assert abs(end - now - 12 * 86_400) < 60


def test_the_first_ca_that_ends_is_announced(tmp_path: Path) -> None:
    """While a CA is replaced, the file has both. What the older one has signed is refused after its end."""
    run("create", str(tmp_path / "old"), "--host", "a", "--ca-days", "20", "--days", "20")
    run("create", str(tmp_path / "new"), "--host", "a", "--ca-days", "900", "--days", "300")
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "new" / "ca.pem").read_bytes() + (tmp_path / "old" / "ca.pem").read_bytes())
    new = tmp_path / "new"
    files = TlsFiles(both, new / "worker.a.pem", new / "worker.a.key")
    (warning,) = certificate_warnings(files, time.time())
    assert f"the CA {both} ends on " in warning
    registry = CollectorRegistry()
    register_certificate(registry, files)
    end = registry.get_sample_value("millwheel_ca_end_timestamp_seconds")
    assert end is not None
    assert abs(end - time.time() - 20 * 86_400) < 120
    assert certificate_warnings(TlsFiles(new / "ca.pem", files.cert, files.key), time.time()) == ()


def test_a_client_sees_what_is_wrong_with_its_own_files(tmp_path: Path) -> None:
    identities, others = Identities(tmp_path), Identities(tmp_path / "others")
    assert own_certificate_problem(identities.certificate("ada")) is None
    old = own_certificate_problem(identities.certificate("old", ends_in=timedelta(seconds=-5)))
    assert old is not None
    assert (old.code, old.reason) == (FailureCode.UNAUTHENTICATED, "CERTIFICATE_EXPIRED")
    foreign = others.certificate("ada")
    mixed = own_certificate_problem(TlsFiles(identities.server.ca, foreign.cert, foreign.key))
    assert mixed is not None
    assert (mixed.code, mixed.reason) == (FailureCode.UNAUTHENTICATED, "CERTIFICATE_OF_OTHER_CA")


def _may(access: Authorization | None, files: TlsFiles, role: str) -> bool:
    assert access is not None
    return access.policy.holds(of_certificate(files.cert.read_bytes()), [role], None)


def test_without_a_policy_the_daemons_certificate_decides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identities = Identities(tmp_path)
    person, admin = identities.certificate("ada"), identities.certificate("root", ("admin",))
    closed = authorization_of(identities.server, None)
    assert [role for role in ROLES if _may(closed, person, role)] == ["read"]
    assert _may(closed, admin, "submit")
    assert not _may(closed, admin, "process")
    assert caplog.text == ""
    opened = authorization_of(OLD, None)
    assert _may(opened, person, "process")
    assert "every certificate of the cluster's CA may do everything" in caplog.text
    assert authorization_of(None, None) is None


def test_a_policy_must_let_the_daemon_itself_work(tmp_path: Path) -> None:
    path = Identities(tmp_path).policy()
    with pytest.raises(ConfigError, match="the certificate of this process, holds no role process: grant it"):
        authorization_of(OLD, path)
    path.write_text(grant("certificate:*", ("process",)))
    assert authorization_of(OLD, path) is not None


async def test_a_daemon_with_a_wrong_policy_does_not_start(tmp_path: Path) -> None:
    identities = Identities(tmp_path / "certificates")
    server, policy = identities.server, tmp_path / "policy.toml"
    policy.write_text('[[grants]]\nwho = ["ada"]\nroles = ["king"]\n')
    tls = {"rpc.tls_ca": server.ca, "rpc.tls_cert": server.cert, "rpc.tls_key": server.key}
    settings = {**embedded(tmp_path), **tls, "security.policy": policy}
    async with DaemonProcess("master", tmp_path / "log", settings) as master:
        assert await master.ended() == 5
    text = master.tail()
    assert "grants[1].who: 'ada' has no kind" in text
    assert "grants[1].roles: 'king' is no role" in text


async def test_a_policy_without_tls_is_a_mistake(tmp_path: Path) -> None:
    settings = {**embedded(tmp_path), "security.policy": tmp_path / "policy.toml"}
    async with DaemonProcess("master", tmp_path / "log", settings) as master:
        assert await master.ended() == 5
    assert "security.policy" in master.tail()
    assert "is of no use without TLS" in master.tail()


def test_a_long_name_is_not_cut_to_another_one() -> None:
    """A pattern such as name:*/ops would match what is left of it."""
    key, now, place = ec.generate_private_key(ec.SECP256R1()), utc_now(), "spiffe://x/" + "a" * 300
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "eve")])
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(place)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    assert of_certificate(made.public_bytes(serialization.Encoding.PEM)).groups == (f"name:{place}",)
