"""Topologies: computations, and the streams that connect them (sections 3 and 4, figure 3)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from millwheel.model.time import Duration, hours
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import Codec
from millwheel.sdk.computation import Computation
from millwheel.sdk.declarations import ComputationDeclaration, StreamDeclaration, StreamKind, declare_computation
from millwheel.sdk.errors import Problem, TopologyError
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.options import STRAGGLER_DELAY, ComputationOptions, FailurePolicy, Late, Retention, retry
from millwheel.sdk.plan import Plan, lay_out
from millwheel.sdk.spec import build_spec
from millwheel.sdk.validation import find_problems

__all__ = ["Topology"]

ID_SLACK: Final = hours(1)


class Topology:
    """A graph of computations, and the streams that connect them.

    A stream belongs to its topology. Its full name is ``TOPOLOGY/STREAM``, such as ``zeitgeist/queries``. The code of
    the topology calls it by its short name. To read a stream of another topology, declare it by :meth:`external`.

    The methods that build a topology do not raise on mistakes. :meth:`validate` returns all mistakes at once.
    :meth:`check` raises them as one TopologyError, and everything that runs a topology calls it. The order of the calls
    does not matter. For example::

        zeitgeist = millwheel.Topology("zeitgeist")
        zeitgeist.source("queries", Query)
        zeitgeist.add(WindowCounter, inputs={"queries": millwheel.key("text")}, outputs=["windows"])

    Args:
        name: 1 to 63 of a-z, 0-9 and -, beginning with a letter.
    """

    def __init__(self, name: str) -> None:
        """Begin an empty topology."""
        self.name = name
        # The module that creates the topology most likely also contains it. Packaging its code looks there first.
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        self._made_in: str = caller.f_globals.get("__name__", "") if caller is not None else ""
        self._declarations: list[StreamDeclaration] = []
        self._added: list[ComputationDeclaration] = []
        self._planned: tuple[Plan, list[Problem]] | None = None
        self._spec = topology_pb2.TopologySpec()

    def __repr__(self) -> str:
        return f"Topology({self.name!r})"

    def source(
        self,
        name: str,
        record_type: Any,
        *,
        id_slack: Duration = ID_SLACK,
        allowed_skew: Duration | None = None,
        injectors: Iterable[str] = (),
        retention: Retention | None = None,
        codec: Codec[Any] | None = None,
    ) -> None:
        """Declare a stream that injectors feed (section 5.2). It belongs to this topology.

        Args:
            name: The stream's name.
            record_type: The type of its values.
            id_slack: How long the ids of its records are kept after the low watermark passes them, to detect duplicates
                (6.1.1). Microseconds.
            allowed_skew: How far injected timestamps may be ahead of the low watermark before the injector has to wait.
                Microseconds; None sets no limit.
            injectors: The injector processes whose low watermarks the stream waits for. Empty: those that announce
                themselves.
            retention: What the stream keeps for subscribers that do not exist yet.
            codec: A user-defined encoding of its values.
        """
        named = injectors if isinstance(injectors, str) else tuple(injectors)
        self._declare(
            StreamDeclaration(name, StreamKind.SOURCE, record_type, codec, retention, id_slack, allowed_skew, named)
        )

    def stream(
        self,
        name: str,
        record_type: Any,
        *,
        retention: Retention | None = None,
        codec: Codec[Any] | None = None,
    ) -> None:
        """Declare a stream that a computation of this topology produces.

        A declaration is needed only if neither ``outputs=`` nor a consumer determines the type, or for the options
        below.

        Args:
            name: The stream's name.
            record_type: The type of its values.
            retention: What the stream keeps for subscribers that do not exist yet.
            codec: A user-defined encoding of its values.
        """
        self._declare(StreamDeclaration(name, StreamKind.STREAM, record_type, codec, retention))

    def external(self, name: str, record_type: Any, *, codec: Codec[Any] | None = None) -> None:
        """Declare a stream of another topology, which this one consumes (section 4.3). Only its topology writes it.

        Args:
            name: The stream's full name, such as ``web/sessions``. ``inputs=`` and ``record.stream`` have it too.
            record_type: The type of its values.
            codec: A user-defined encoding of its values.
        """
        self._declare(StreamDeclaration(name, StreamKind.EXTERNAL, record_type, codec))

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
        self._added.append(declare_computation(computation, name, inputs, outputs, options))
        self._planned = None

    def _declare(self, declaration: StreamDeclaration) -> None:
        self._declarations.append(declaration)
        self._planned = None

    def validate(self) -> list[Problem]:
        """Find all mistakes.

        Returns:
            The mistakes; an empty list if there are none.
        """
        return list(self._examine()[1])

    def check(self) -> None:
        """Raise an error if the topology has mistakes.

        Raises:
            TopologyError: The topology has mistakes. The error lists all of them.
        """
        self.plan()

    def plan(self) -> Plan:
        """The plan of the topology, for the code that runs it.

        Raises:
            TopologyError: The topology has mistakes.
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
            plan = lay_out(self.name, self._declarations, first)
            problems = find_problems(plan, self._declarations, self._added)
            if not problems:
                self._spec, problems = build_spec(plan)
            self._planned = plan, problems
        return self._planned
