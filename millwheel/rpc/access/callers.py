"""Who makes a call (:class:`Callers`), and what this caller may do (:class:`Caller`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from millwheel.rpc.access.credentials import of_certificate
from millwheel.rpc.access.delegation import CLIENT_ADDRESS, ON_BEHALF, from_metadata
from millwheel.rpc.access.policy import AccessPolicy
from millwheel.rpc.access.requirements import MethodAccess, NotAnInjectorError, RoleRule, TopologyOf
from millwheel.rpc.access.tokens import TokenVerifier
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import ANONYMOUS, Principal

__all__ = ["BEARER", "Caller", "Callers"]

BEARER: Final = "bearer "
_PROCESS: Final = frozenset({"process"})
_MAX_ADMITTED: Final = 10_000
"""The most combinations of names that one stream may use. Later ones are checked each time."""


class HasPolicy(Protocol):
    """Has the present policy."""

    @property
    def current(self) -> AccessPolicy:
        """The policy."""


class Callers:
    """Finds who makes a call: by its token, by whom a process acts for, or by the connection's certificate."""

    def __init__(self, policy: Callable[[], AccessPolicy]) -> None:
        self._policy = policy
        self._verifier: TokenVerifier | None = None

    async def principal(self, context: Any, connected: Principal) -> Principal:
        """Return the principal of a call on the connection of ``connected``.

        RequestError: a credential is wrong, revoked or expired.
        """
        policy = self._policy()
        _refuse(policy, connected)
        metadata = {
            name: value for name, value in context.invocation_metadata() if name in ("authorization", ON_BEHALF)
        }
        if ON_BEHALF in metadata:
            if not policy.holds(connected, _PROCESS, None):
                raise RequestError(
                    FailureCode.PERMISSION_DENIED,
                    f"{connected.name} may not act for others",
                    "only the processes of the cluster may",
                    reason="ROLE_MISSING",
                )
            principal = from_metadata(metadata[ON_BEHALF])
        elif "authorization" in metadata:
            principal = await self.of_token(str(metadata["authorization"]))
        else:
            return connected
        _refuse(policy, principal)
        return principal

    @staticmethod
    def peer(context: Any) -> str:
        """Return from where a call comes. For a person at a console that is the browser's address.

        Invariant: :meth:`principal` has let the caller act for others, if it says that it does.
        """
        metadata = {name: value for name, value in context.invocation_metadata() if name in (ON_BEHALF, CLIENT_ADDRESS)}
        if ON_BEHALF in metadata and (address := metadata.get(CLIENT_ADDRESS)):
            return f"{address} through {str(context.peer()).rpartition(':')[0]}"
        return str(context.peer())

    async def of_http(self, certificate: bytes | None, header: str, required: bool = True) -> Principal:
        """Return who makes a request over HTTPS.

        Args:
            certificate: The client certificate in PEM, if there is one.
            header: The ``authorization`` header, or empty.
            required: Whether one of them must be there.
        """
        principal = ANONYMOUS if certificate is None else of_certificate(certificate)
        _refuse(self._policy(), principal)
        if header:
            principal = await self.of_token(header)
            _refuse(self._policy(), principal)
        elif certificate is None and required:
            raise RequestError(
                FailureCode.UNAUTHENTICATED,
                "the console does not know who asks",
                "log in by a token, send it (Authorization: Bearer TOKEN), or show a certificate of the cluster",
                reason="LOGIN_NEEDED",
            )
        return principal

    async def of_token(self, header: str) -> Principal:
        """Return whom the value of an ``authorization`` header names."""
        issuer = self._policy().tokens
        if issuer is None:
            raise RequestError(
                FailureCode.UNAUTHENTICATED,
                "this server accepts no tokens",
                "its policy needs a section [tokens]; or call it without a token, by a certificate alone",
                reason="TOKENS_NOT_ACCEPTED",
            )
        if not header.lower().startswith(BEARER):
            raise RequestError(
                FailureCode.UNAUTHENTICATED,
                "the authorization is no bearer token",
                "send `authorization: Bearer TOKEN`",
                reason="TOKEN_INVALID",
            )
        if self._verifier is None or self._verifier.issuer != issuer:
            self._verifier = TokenVerifier(issuer)
        return await self._verifier.principal(header[len(BEARER) :].strip())


def _refuse(policy: AccessPolicy, principal: Principal) -> None:
    error = policy.refusal(principal, time.time())
    if error is not None:
        raise error


class Caller:
    """A principal that calls one method, and the topologies that the call has named by now."""

    def __init__(self, principal: Principal, access: MethodAccess, policy: HasPolicy, peer: str = "") -> None:
        """``peer``: from where the call comes, for the audit log."""
        self.principal = principal
        self.peer = peer
        self.access = access
        self.topologies: frozenset[str | None] = frozenset()
        self._policy = policy
        self._admitted: set[object] = set()
        self._by_rule: dict[RoleRule, frozenset[str | None]] = {}
        self.is_process = all("process" in rule.roles for rule in access.rules) and self._is_of_the_cluster()
        """Whether the call is one between processes of the cluster. Such a call may name everything."""
        self.is_audited = access.changes and not self.is_process

    def _is_of_the_cluster(self) -> bool:
        return self._policy.current.holds(self.principal, _PROCESS, None)

    def refuse_without_role(self) -> None:
        """Raise RequestError unless the rules of one way can be met for some topology."""
        policy = self._policy.current
        lacking = [
            next((rule for rule in way if not policy.holds_anywhere(self.principal, rule.roles)), None)
            for way in self.access.ways
        ]
        if lacking[0] is not None and None not in lacking:
            raise self._missing(lacking[0], frozenset())

    def has_admitted(self, request: Any) -> bool:
        """Whether an earlier message of the stream has named the same."""
        return isinstance(request, Message) and self._compared(request) in self._admitted

    def _compared(self, request: Message) -> object:
        """Return all that a request names, for comparing it with an earlier one."""
        if self.access.names_in is not None:
            return self.access.names_in(request)
        return tuple(rule.named(request) for way in self.access.ways for rule in way)

    async def admit(self, request: Message, topology_of: TopologyOf) -> None:
        """Raise RequestError (PERMISSION_DENIED) unless the caller holds the roles for what the request names."""
        if self.is_process:
            return
        refused: list[RequestError] = []
        for way in self.access.ways:
            try:
                for rule in way:
                    await self._admit_by(rule, request, topology_of)
            except RequestError as error:
                refused.append(error)
            else:
                break
        if len(refused) == len(self.access.ways):
            raise refused[0]
        if len(self._admitted) < _MAX_ADMITTED:
            self._admitted.add(self._compared(request))

    async def _admit_by(self, rule: RoleRule, request: Message, topology_of: TopologyOf) -> None:
        try:
            topologies = await rule.topologies(rule.named(request), topology_of)
        except NotAnInjectorError as error:
            raise self._not_an_injector(str(error)) from None
        self.topologies |= topologies
        if not topologies and not rule.anywhere:
            topologies = frozenset([None])
        missing = frozenset(one for one in topologies if not self.holds(rule, one))
        if missing or not self._policy.current.holds_anywhere(self.principal, rule.roles):
            raise self._missing(rule, missing)
        self._by_rule[rule] = self._by_rule.get(rule, frozenset()) | topologies

    def holds(self, rule: RoleRule, topology: str | None) -> bool:
        """Whether a role of the rule is held for a topology; None: for the whole cluster."""
        return self._policy.current.holds(self.principal, rule.roles, topology)

    def recheck(self, now: float) -> RequestError | None:
        """Return why an open stream may no longer go on."""
        policy = self._policy.current
        if (error := policy.refusal(self.principal, now)) is not None:
            return error
        if self.is_process:
            return None if self._is_of_the_cluster() else self._missing(self.access.rules[0], frozenset([None]))
        for rule, topologies in self._by_rule.items():
            missing = frozenset(one for one in topologies if not self.holds(rule, one))
            if missing or not policy.holds_anywhere(self.principal, rule.roles):
                return self._missing(rule, missing)
        return None

    def _missing(self, rule: RoleRule, topologies: frozenset[str | None]) -> RequestError:
        where = _where(topologies)
        policy = self._policy.current.file
        keeper = f"in its policy {policy}" if policy else "by a policy (security.policy)"
        remedy = f"grant it {keeper} on the server, or use another certificate or token"
        if None in topologies and any(kind in ("streams", "queries") for kind, _ in rule.paths):
            remedy += "; name streams in full (TOPOLOGY/STREAM), and queries QUERY/TOPOLOGY/STREAM"
        return RequestError(
            FailureCode.PERMISSION_DENIED,
            f"{self.principal.name} may not call {self.access.name}: it needs role {_roles(rule)}{where}",
            remedy,
            reason="ROLE_MISSING",
        )

    def _not_an_injector(self, sender: str) -> RequestError:
        return RequestError(
            FailureCode.PERMISSION_DENIED,
            f"{self.principal.name} may not call {self.access.name} for {sender!r}: it needs role process",
            "an injector names its own stream: injector/TOPOLOGY/STREAM",
            reason="ROLE_MISSING",
        )


def _roles(rule: RoleRule) -> str:
    return " or ".join(sorted(rule.roles))


def _where(topologies: frozenset[str | None]) -> str:
    if None in topologies:
        return " for the whole cluster"
    return " for topology " + ", ".join(repr(one) for one in sorted(filter(None, topologies))) if topologies else ""
