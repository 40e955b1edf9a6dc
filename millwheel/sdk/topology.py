"""Topologies: computations, and the streams that connect them (sections 3 and 4, figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Self

from millwheel.model.time import Duration
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.computation import Computation
from millwheel.sdk.declarations import (
    ComputationDeclaration,
    DerivedStream,
    Objection,
    StreamDeclaration,
    StreamKind,
    declare_computation,
)
from millwheel.sdk.errors import Problem, TopologyError
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.options import STRAGGLER_DELAY, ComputationOptions, FailurePolicy, Late, retry
from millwheel.sdk.plan import Plan, lay_out
from millwheel.sdk.spec import build_spec
from millwheel.sdk.validation import find_problems

__all__ = ["TopologyGraph"]


class TopologyGraph:
    """A graph of computations, and the streams that connect them.

    It is what :class:`millwheel.Topology` has declared. Everything that packages, compiles, tests or runs a topology
    reads it here.

    Args:
        name: 1 to 63 of a-z, 0-9 and -, beginning with a letter.
    """

    def __init__(self, name: str) -> None:
        """Begin an empty topology."""
        self.name = name
        self._declarations: list[StreamDeclaration] = []
        self._added: list[ComputationDeclaration] = []
        self._derived: list[DerivedStream] = []
        self._objections: list[Objection] = []
        self._planned: tuple[Plan, list[Problem]] | None = None
        self._spec = topology_pb2.TopologySpec()

    def __repr__(self) -> str:
        return f"Topology({self.name!r})"

    def named(self, name: str) -> Self:
        """The same topology under another name. The code of a fork says its original's name (docs/snapshots.md).

        The copy is made of what is declared by now. A stream or a computation has the same short name in both.
        """
        other = copy(self)
        other.name = name
        other._declarations, other._added = list(self._declarations), list(self._added)
        other._derived, other._planned = list(self._derived), None
        other._objections = list(self._objections)
        return other

    def add(
        self,
        computation: type[Computation[Any, Any]] | Computation[Any, Any] | Callable[[], Computation[Any, Any]],
        *,
        inputs: Mapping[str, KeyExtractor],
        outputs: Sequence[str] | Mapping[str, Any] = (),
        name: str | None = None,
        exactly_once: bool = True,
        strong: bool = True,
        late: Late = Late.PROCESS,
        on_failure: FailurePolicy | None = None,
        straggler_delay: Duration = STRAGGLER_DELAY,
    ) -> None:
        """Add a computation.

        Args:
            computation: Its class, or an instance if it has parameters.
            inputs: By input stream: the key of its records, from :func:`millwheel.key`.
            outputs: The streams that it produces to, or a mapping from these streams to their types.
            name: The computation's name. By default it comes from the class: ``WindowCounter`` becomes
                ``window-counter``. State is stored under this name, so the name should stay when the class is renamed.
            exactly_once: Whether duplicates are dropped (6.1.1).
            strong: Whether productions are stored before they are sent. If False, the productions of a hook must depend
                on its input alone (6.1.3).
            late: What happens to late records.
            on_failure: What happens when a hook raises. By default :func:`millwheel.retry`.
            straggler_delay: With ``strong=False``: how long a production may wait for its ACK before it is stored.
                Microseconds.
        """
        options = ComputationOptions(
            exactly_once=exactly_once,
            strong=strong,
            late=late,
            on_failure=retry() if on_failure is None else on_failure,
            straggler_delay=straggler_delay,
        )
        self.declare(declare_computation(computation, name, inputs, outputs, options))

    def declare(self, declaration: StreamDeclaration | DerivedStream | ComputationDeclaration | Objection) -> None:
        """Add a declaration, as :class:`millwheel.Topology` and its streams make them."""
        if isinstance(declaration, DerivedStream):
            self._derived.append(declaration)
        elif isinstance(declaration, ComputationDeclaration):
            self._added.append(declaration)
        elif isinstance(declaration, Objection):
            self._objections.append(declaration)
        else:
            self._declarations.append(declaration)
        self._planned = None

    def is_fed(self, stream: str) -> bool:
        """Whether other programs write the stream: injectors, or another topology."""
        fed = (StreamKind.SOURCE, StreamKind.EXTERNAL)
        return any(one.name == stream and one.kind in fed for one in self._declarations)

    def validate(self) -> list[Problem]:
        """Find all mistakes.

        Returns:
            The mistakes; an empty list if there are none.
        """
        objections = [Problem(f"computation {one.computation!r}", one.why) for one in self._objections]
        return [*self._examine()[1], *objections]

    def check(self) -> None:
        """Raise an error if the topology has mistakes.

        Raises:
            TopologyError: The topology has mistakes. The error lists all of them.
        """
        if problems := self.validate():
            raise TopologyError(self.name, problems)

    def plan(self) -> Plan:
        """The plan of the topology, for the code that runs it. Unlike :meth:`check`, it takes what runs already.

        Raises:
            TopologyError: The topology has mistakes, beside those that earlier versions submitted.
        """
        plan, problems = self._examine()
        if problems:
            raise TopologyError(self.name, problems)
        return plan

    def to_spec(self, code: topology_pb2.CodeReference | None = None) -> topology_pb2.TopologySpec:
        """The spec that is sent to the cluster. It does not depend on the order of the calls that built the topology.

        Args:
            code: The code package that contains this topology.

        Raises:
            TopologyError: The topology has mistakes.
        """
        self.check()
        spec = topology_pb2.TopologySpec()
        spec.CopyFrom(self._spec)
        if code is not None:
            spec.code.CopyFrom(code)
        return spec

    def _examine(self) -> tuple[Plan, list[Problem]]:
        """Build and validate the plan once. This includes the spec, so every valid topology can be submitted."""
        if self._planned is None:
            first: dict[str, ComputationDeclaration] = {}
            for computation in self._added:
                first.setdefault(computation.name, computation)
            plan = lay_out(self.name, self._declarations, first, self._derived)
            problems = find_problems(plan, self._declarations, self._added)
            if not problems:
                self._spec, problems = build_spec(plan)
            self._planned = plan, problems
        return self._planned
