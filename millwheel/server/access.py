"""Who may call a daemon: the policy that holds for it, and what the interceptor must know of the cluster."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millwheel.config import ConfigError
from millwheel.config.access_policy import PolicyFile
from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.errors import Problem
from millwheel.model.catalog_keys import chunks_prefix
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.access.policy import OPEN_POLICY, AccessGrant, AccessPolicy
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.principal import Principal
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord
from millwheel.rpc.v1.topology_pb2 import CodeReference

if TYPE_CHECKING:
    from millwheel.rpc.access.authorization import Authorization, PolicySource

__all__ = ["DEFAULT_POLICY", "FixedPolicy", "authorization_of", "code_admission", "topology_lookup"]

log = logging.getLogger("millwheel.security")

DEFAULT_POLICY: Final = AccessPolicy((AccessGrant(("certificate:*",), frozenset(("read",))),))
"""Without a policy file: a certificate holds the roles that it names. Others read."""

_PROCESS: Final = frozenset(("process",))
_MAX_KNOWN: Final = 100_000
"""The number of incarnations whose topology is kept. An id never gets another topology."""


class FixedPolicy:
    """A policy that does not change."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.current = policy

    def reload(self) -> None:
        """Do nothing."""


def authorization_of(tls: TlsFiles | None, policy: Path | None) -> Authorization | None:
    """Return the interceptor of a server. None: without TLS there are no principals.

    Raises:
        ConfigError: The policy has problems, or gives this process's own certificate no role ``process``.
        RequestError: The certificate cannot be read.
    """
    if tls is None:
        return None
    # It loads cryptography and PyJWT, which are of no use without TLS.
    from millwheel.rpc.access.authorization import Authorization

    return Authorization(_source(_own(tls), policy))


def _own(tls: TlsFiles) -> Principal:
    from millwheel.rpc.access.credentials import of_certificate

    try:
        return of_certificate(tls.cert.read_bytes())
    except OSError as error:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"the TLS file {tls.cert} cannot be read: {error.strerror}",
            "see rpc.tls_cert",
            reason="TLS_FILE_UNREADABLE",
        ) from error


def _source(own: Principal, path: Path | None) -> PolicySource:
    if path is not None:

        def accept(policy: AccessPolicy) -> None:
            if not policy.holds(own, _PROCESS, None):
                problem = f"{own.name}, the certificate of this process, holds no role process: grant it"
                raise ConfigError([Problem(f"{path}: grants", problem)])

        return PolicyFile(path, accept)
    if "process" in own.roles:
        return FixedPolicy(DEFAULT_POLICY)
    log.warning(
        "every certificate of the cluster's CA may do everything: there is no policy (security.policy), and the "
        "certificate of this process, %s, names no role; docs/security.md says how to change that",
        own.name,
    )
    return FixedPolicy(OPEN_POLICY)


def code_admission(access: Authorization | None) -> Callable[[CodeReference], None]:
    """Return a function that raises RequestError for code that the present policy does not let run."""

    def admit(code: CodeReference) -> None:
        if access is not None:
            from millwheel.rpc.access.signatures import refuse_unsigned

            refuse_unsigned(access.policy, code.digest, code.signature)

    return admit


def topology_lookup(coordinator: Coordinator) -> Callable[[IncarnationId], Awaitable[str | None]]:
    """Return a function that reads to which topology an incarnation belongs. None: the coordinator has no such one."""
    known: dict[IncarnationId, str] = {}

    async def topology_of(incarnation: IncarnationId) -> str | None:
        if incarnation not in known:
            try:
                entries = (await coordinator.list(chunks_prefix(incarnation))).entries
            except CoordinatorError as error:
                raise RequestError(
                    FailureCode.UNAVAILABLE, f"the coordinator failed: {error}", "see that it runs, and try again"
                ) from error
            if not entries:
                return None
            if len(known) >= _MAX_KNOWN:
                known.clear()
            known[incarnation] = IntervalMapRecord.FromString(entries[0].value).topology
        return known[incarnation] or None

    return topology_of
