"""Topologies: which computations there are, and which streams connect them (sections 3 and 4, figure 3)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from millwheel.core.time import Duration, hours
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
    """A graph of computations, connected by streams that are known by their names alone.

    Nothing here raises on a mistake: :meth:`validate` reports them all at once, and :meth:`check`, which
    everything that runs a topology calls, raises them as one TopologyError. The order of the calls does
    not matter.

        zeitgeist = millwheel.Topology("zeitgeist")
        zeitgeist.source("queries", Query)
        zeitgeist.add(WindowCounter, inputs={"queries": millwheel.key("text")}, outputs=["windows"])
    """

    def __init__(self, name: str) -> None:
        """``name`` is 1 to 63 of a-z, 0-9 and -, beginning with a letter."""
        self.name = name
        # Where it is made, which is most likely where it stands: for packaging its code.
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
        """A stream that injectors feed (section 5.2).

        ``id_slack`` is how long past the low watermark the ids of its records are kept, to know
        duplicates by (6.1.1); ``allowed_skew`` how far injected timestamps may be ahead of the low
        watermark before the injector has to wait (None: no bound); ``injectors`` the processes whose
        low watermarks are waited for (none: those that announce themselves).
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
        """A stream that a computation of this topology produces.

        Needed only where ``outputs=`` does not state the type, and no consumer makes it plain; or for
        a codec, or a ``retention`` for subscribers that are yet to come.
        """
        self._declare(StreamDeclaration(name, StreamKind.STREAM, record_type, codec, retention))

    def external(self, name: str, record_type: Any, *, codec: Codec[Any] | None = None) -> None:
        """A stream that belongs to another topology, which this one consumes or produces to (section 4.3)."""
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
        """Add a computation: its class, or an instance where it has parameters.

        ``inputs`` says for each stream how its records are keyed; ``outputs`` lists the streams that it
        produces to, or maps them to their types. ``name`` is by default the class's, ``WindowCounter`` as
        ``window-counter``; state is kept under it, so it should outlive a renaming of the class.

        ``exactly_once`` False lets duplicates through (6.1.1); ``strong`` False sends productions before
        they are stored, which takes hooks whose productions depend on their input alone (6.1.3), and
        ``straggler_delay`` is how long one of those may stay unacknowledged before it is stored after all.
        ``late`` and ``on_failure`` say what becomes of late records and of hooks that raise.
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
        """All mistakes at once; an empty list where there are none."""
        return list(self._examine()[1])

    def check(self) -> None:
        """Raise a TopologyError that lists all mistakes, if there are any."""
        self.plan()

    def plan(self) -> Plan:
        """The topology put together, for what runs it; TopologyError as by :meth:`check`."""
        plan, problems = self._examine()
        if problems:
            raise TopologyError(self.name, problems)
        return plan

    def to_spec(self, code: topology_pb2.CodeReference | None = None) -> topology_pb2.TopologySpec:
        """What is sent to the cluster; the same for the same topology, in whatever order it was built.

        ``code`` says where the workers find this topology. TopologyError as by :meth:`check`.
        """
        self.check()
        spec = topology_pb2.TopologySpec()
        spec.CopyFrom(self._spec)
        if code is not None:
            spec.code.CopyFrom(code)
        return spec

    def _examine(self) -> tuple[Plan, list[Problem]]:
        """Put the topology together, once. Building the spec is a part of it: what is valid can be submitted."""
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
