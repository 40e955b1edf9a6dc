"""The access policy of a cluster: which roles a principal holds, for which topologies, and what is revoked. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import Principal

__all__ = [
    "ALGORITHMS",
    "ALL",
    "OPEN_POLICY",
    "ROLES",
    "AccessGrant",
    "AccessPolicy",
    "RevokedCredentials",
    "TokenIssuer",
    "held",
]

ROLES: Final = ("read", "inject", "submit", "operate", "admin", "process")
ALL: Final = "*"
"""The pattern that matches every topology. Only a grant with this pattern holds for the whole cluster."""

_INCLUDED: Final = {
    "submit": ("read",),
    "operate": ("read",),
    "process": ("read",),
    "admin": ("read", "inject", "submit", "operate"),
}

ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
"""The signatures of tokens that a policy may allow. All have a public key, so no daemon can make a token."""


def held(roles: Collection[str]) -> frozenset[str]:
    """Return ``roles`` with the roles that they include."""
    return frozenset(roles).union(*(_INCLUDED.get(role, ()) for role in roles))


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a name. Only ``*`` is special: a name may have brackets and question marks."""
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """Roles for principals whose name or group matches a pattern, in topologies whose name matches one."""

    who: tuple[str, ...]
    roles: frozenset[str]
    topologies: tuple[str, ...] = (ALL,)

    def applies(self, principal: Principal) -> bool:
        """Whether a pattern of ``who`` matches the principal."""
        return any(_matches(name, pattern) for pattern in self.who for name in principal.names)

    def covers(self, topology: str | None) -> bool:
        """Whether the grant holds for a topology. None: for the whole cluster."""
        if topology is None:
            return ALL in self.topologies
        return any(_matches(topology, pattern) for pattern in self.topologies)


@dataclass(frozen=True, slots=True)
class RevokedCredentials:
    """Credentials that are refused although they have not expired."""

    serials: frozenset[str] = frozenset()
    """Serials of certificates, in lower-case hex without leading zeros."""
    fingerprints: frozenset[str] = frozenset()
    """SHA-256 of certificates, in lower-case hex."""
    token_ids: frozenset[str] = frozenset()
    """The claim ``jti`` of tokens."""
    principals: tuple[str, ...] = ()
    """Patterns of principals' names and groups."""


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Whose tokens are accepted. ``jwks`` names a file of keys; without it the keys come from the issuer (OIDC)."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    jwks: Path | None = None
    name_claim: str = "sub"
    groups_claim: str = "groups"
    leeway_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """A policy. ``file`` names it in errors; empty: no file."""

    grants: tuple[AccessGrant, ...] = ()
    certificate_roles: bool = True
    """Whether a certificate holds, for the whole cluster, the roles that it names itself (unit ``millwheel-ROLE``)."""
    revoked: RevokedCredentials = RevokedCredentials()
    tokens: TokenIssuer | None = None
    signers: Mapping[str, bytes] = field(default_factory=dict)
    """By name: the Ed25519 public keys whose signature a code package needs. Empty: packages need none."""
    file: str = ""

    def holds(self, principal: Principal, roles: Collection[str], topology: str | None) -> bool:
        """Whether the principal holds one of ``roles`` for a topology. None: for the whole cluster."""
        if self.certificate_roles and not held(principal.roles).isdisjoint(roles):
            return True
        return any(
            not held(grant.roles).isdisjoint(roles) and grant.covers(topology) and grant.applies(principal)
            for grant in self.grants
        )

    def holds_anywhere(self, principal: Principal, roles: Collection[str]) -> bool:
        """Whether the principal holds one of ``roles`` for the cluster or for any topology."""
        if self.holds(principal, roles, None):
            return True
        return any(not held(grant.roles).isdisjoint(roles) and grant.applies(principal) for grant in self.grants)

    def refusal(self, principal: Principal, now: float) -> RequestError | None:
        """Return why the credential no longer counts: it is revoked, or has expired. None: it counts."""
        gone = self.revoked
        by_name = any(_matches(name, pattern) for pattern in gone.principals for name in principal.names)
        ids = gone.serials if principal.fingerprint else gone.token_ids
        if by_name or principal.credential in ids or principal.fingerprint in gone.fingerprints:
            return RequestError(
                FailureCode.UNAUTHENTICATED,
                f"the credential of {principal.name} is revoked",
                "get a new one from who runs the cluster",
                reason="CREDENTIAL_REVOKED",
            )
        if principal.expires and now >= principal.expires:
            kind = "certificate" if principal.fingerprint else "token"
            return RequestError(
                FailureCode.UNAUTHENTICATED,
                f"the {kind} of {principal.name} has expired",
                f"get a new {kind}",
                reason=f"{kind.upper()}_EXPIRED",
            )
        return None


OPEN_POLICY: Final = AccessPolicy((AccessGrant((ALL,), frozenset(("admin", "process"))),))
"""Everything for every caller that TLS admits: a cluster of an earlier version, without a policy."""
