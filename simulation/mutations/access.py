"""Mutations of who may do what: roles, topologies, revocation, acting for others, signed code."""

from __future__ import annotations

from typing import Final

from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.access.callers import Caller, Callers
from millwheel.rpc.access.open_calls import OpenCalls
from millwheel.rpc.access.requirements import RoleRule
from millwheel.worker.process.programs import Programs
from simulation.mutations.base import rewriting

_TESTS: Final = "tests/access/test_interceptor.py::"
_TOPOLOGIES: Final = f"{_TESTS}test_roles_of_a_topology_count_there_alone"
_WHY: Final = "simulated clusters have no certificates: the test shows it by itself"
ROLE_CHECK: Final = Caller._admit_by  # noqa: SLF001  # what both ways of a request pass
_SECURITY: Final = "security"

rewriting(
    "roles-for-every-topology",
    _SECURITY,
    "a role for one topology does not count for another",
    ROLE_CHECK,
    "missing = frozenset(one for one in topologies if not self.holds(rule, one))",
    "missing = frozenset[str | None]()",
    seeds=0,
    test=_TOPOLOGIES,
    why=_WHY,
)

rewriting(
    "unknown-names-left-out",
    _SECURITY,
    "a name that no topology has counts as the whole cluster",
    ROLE_CHECK,
    "topologies = await rule.topologies(rule.named(request), topology_of)",
    "topologies = await rule.topologies(rule.named(request), topology_of) - {None}",
    seeds=0,
    test=_TOPOLOGIES,
    why=_WHY,
)

rewriting(
    "injectors-as-intervals",
    _SECURITY,
    "an injector delivers and reports only as an injector",
    RoleRule.topologies,
    "await _topology(kind, value, topology_of)",
    "await _topology('groups' if kind == 'injectors' else kind, value, topology_of)",
    seeds=0,
    test=_TOPOLOGIES,
    why=_WHY,
)

rewriting(
    "unknown-callers-admitted",
    _SECURITY,
    "a method is open to the roles that it states",
    Authorization.admit,
    "await caller.admit(request, self.topology_of)",
    "pass",
    seeds=0,
    test=f"{_TESTS}test_each_method_is_open_to_its_roles_alone",
    why=_WHY,
)

rewriting(
    "everybody-acts-for-others",
    _SECURITY,
    "only a process of the cluster acts for others",
    Callers.principal,
    "if not policy.holds(connected, _PROCESS, None):",
    "if False:",
    seeds=0,
    test=f"{_TESTS}test_only_a_process_may_act_for_others",
    why=_WHY,
)

rewriting(
    "revoked-streams-go-on",
    _SECURITY,
    "a stream ends when its credential is revoked",
    OpenCalls.recheck,
    "if error is not None and call in self._calls:",
    "if False:",
    seeds=0,
    test=f"{_TESTS}test_a_revocation_ends_an_open_stream",
    why=_WHY,
)

rewriting(
    "unsigned-code-loaded",
    _SECURITY,
    "a worker loads no code without a signature that its policy needs",
    Programs.load,
    "self._admit(code)",
    "pass",
    seeds=0,
    test="tests/access/test_signatures.py::test_a_worker_does_not_even_fetch_unsigned_code",
    why=_WHY,
)
