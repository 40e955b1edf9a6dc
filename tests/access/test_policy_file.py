"""The policy's file: what it means, and how its mistakes are named. A changed file counts, and a wrong one does not."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from millwheel.config import ConfigError
from millwheel.config.access_policy import PolicyFile, parse_policy
from millwheel.rpc.access.policy import AccessPolicy
from millwheel.rpc.principal import Principal

HERE = Path("/etc/millwheel/policy.toml")

GOOD = """
[[grants]]
who = ["certificate:ada", "group:ops"]
roles = ["operate", "inject"]
topologies = ["shop", "shop-*"]

[[grants]]
who = ["*"]
roles = ["read"]

[tokens]
issuer = "https://login.example"
audience = "millwheel"
algorithms = ["RS256", "ES256"]
jwks = "keys.json"
leeway_seconds = 5

[revoked]
serials = ["0x0AB1", "AB:CD"]
fingerprints = ["SHA256:%s"]
token_ids = ["t-1"]
principals = ["certificate:mallory"]

[packages.signers]
ada = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
""" % ("00FF" * 16)

WRONG = """
certificate_roles = "yes"
grant = 1
[[grants]]
who = ["ada"]
roles = ["reed", "process"]
topologies = ["shop"]
[[grants]]
who = []
[tokens]
issuer = "https://login.example"
algorithms = ["none", "HS256", "RS256"]
leeway_seconds = true
[revoked]
serials = ["xyz"]
fingerprints = ["00ff"]
principals = ["mallory"]
tokens = []
[packages]
signers = { ada = "short" }
"""

PROBLEMS = [
    "grant: is unknown (did you mean 'grants'?): there are certificate_roles, grants, tokens, revoked, packages",
    "certificate_roles: it takes true or false",
    "grants[1].who: 'ada' has no kind: begin it with certificate:, unit:, name:, token:, group:",
    "grants[1].roles: 'reed' is no role (did you mean 'read'?): read, inject, submit, operate, admin, process",
    "grants[1].topologies: the role process holds for the whole cluster: leave them out",
    "grants[2].who: is missing, or empty",
    "grants[2].roles: is missing, or empty",
    "revoked.tokens: is unknown (did you mean 'token_ids'?): there are serials, fingerprints, token_ids, principals",
    "revoked.serials: 'xyz' is no number in hex, as `millwheel certificates show` prints it",
    "revoked.fingerprints: '00ff' is no SHA-256: it has 4 digits, and not 64",
    "revoked.principals: 'mallory' has no kind: begin it with certificate:, unit:, name:, token:, group:",
    "tokens.leeway_seconds: it takes a number",
    "tokens.audience: is missing: a token for another service must not count here",
    "tokens.algorithms: 'none' is not allowed",
    "tokens.algorithms: 'HS256' is not allowed",
    "packages.signers.ada: it takes an Ed25519 public key: 32 bytes in base64",
]


def holds(policy: AccessPolicy, name: str, role: str, topology: str | None, *groups: str) -> bool:
    return policy.holds(Principal(name, groups), [role], topology)


def test_a_policy_grants_roles_by_name_and_topology() -> None:
    policy = parse_policy(GOOD, HERE)
    assert holds(policy, "certificate:ada", "operate", "shop")
    assert holds(policy, "token:bob", "inject", "shop-eu", "group:ops")
    assert not holds(policy, "token:bob", "inject", "shop-eu")
    assert not holds(policy, "certificate:ada", "operate", "web")
    assert not holds(policy, "certificate:ada", "operate", None), "the whole cluster is more than some topologies"
    assert not holds(policy, "certificate:ada", "submit", "shop")
    assert holds(policy, "anonymous", "read", None)
    assert policy.tokens is not None
    assert policy.tokens.jwks == Path("/etc/millwheel/keys.json"), "beside the policy"
    assert policy.revoked.serials == {"ab1", "abcd"}
    assert policy.revoked.fingerprints == {"00ff" * 16}
    assert policy.signers == {"ada": bytes(32)}


def test_roles_include_others() -> None:
    policy = AccessPolicy()
    for role, included in (("submit", "read"), ("operate", "read"), ("process", "read"), ("admin", "inject")):
        assert policy.holds(Principal("certificate:x", roles=(role,)), [included], "shop")
    assert not policy.holds(Principal("certificate:x", roles=("admin",)), ["process"], None)
    assert not policy.holds(Principal("certificate:x", roles=("inject",)), ["read"], "shop")


def test_a_policy_may_ignore_roles_in_certificates() -> None:
    policy = parse_policy("certificate_roles = false", HERE)
    assert not policy.holds(Principal("certificate:x", roles=("admin",)), ["read"], None)


def test_only_the_star_is_special_in_a_pattern() -> None:
    """A name with brackets or a question mark means itself, so its revocation counts."""
    policy = parse_policy('[revoked]\nprincipals = ["certificate:ada [ops]", "token:a?c*"]\n', HERE)
    for name, gone in (
        ("certificate:ada [ops]", True),
        ("certificate:ada o", False),
        ("token:a?c", True),
        ("token:a?cd", True),
        ("token:abc", False),
    ):
        assert (policy.refusal(Principal(name), 0.0) is not None) == gone, name


def test_all_mistakes_are_named_with_their_place() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(WRONG, HERE)
    found = [str(problem) for problem in caught.value.problems]
    assert len(found) == len(PROBLEMS), found
    for message in PROBLEMS:
        assert any(f"{HERE}: {message}" in one for one in found), message


@pytest.mark.parametrize("text", ["[", "a = ", "\0"])
def test_what_is_no_toml_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="the policy is not TOML"):
        parse_policy(text, HERE)


def test_a_changed_file_counts_and_a_wrong_one_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(GOOD)
    file = PolicyFile(path)

    def write(text: str) -> None:
        path.write_text(text)
        stamp = path.stat().st_mtime_ns + 1_000_000
        os.utime(path, ns=(stamp, stamp))
        file.reload()

    write('[[grants]]\nwho = ["certificate:bob"]\nroles = ["admin"]\n')
    assert holds(file.current, "certificate:bob", "submit", "web")
    with caplog.at_level(logging.ERROR):
        write(WRONG)
        file.reload()
    assert holds(file.current, "certificate:bob", "submit", "web"), "the last good one holds"
    assert caplog.text.count("is not taken, so the one before holds") == 1
    for text in ("", "\n"):
        write(text)
        assert holds(file.current, "certificate:bob", "submit", "web"), "it is being written"
    path.unlink()
    file.reload()
    assert holds(file.current, "certificate:bob", "submit", "web"), "a lost file opens nothing"


def test_a_missing_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the policy cannot be read: No such file"):
        PolicyFile(tmp_path / "none.toml")
