"""The streams and computations of a topology as the user declared them, before they are combined into a plan."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from millwheel.model.time import Duration
from millwheel.sdk.apart import own_name
from millwheel.sdk.batches.computation import BatchComputation, batch_problems
from millwheel.sdk.codecs import Codec
from millwheel.sdk.computation import SAME_AS_INPUT, Computation, input_and_state_types
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import Problem, did_you_mean
from millwheel.sdk.expressions import Expression
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.option_checks import computation_option_problems
from millwheel.sdk.options import ComputationOptions, LateAction, Retention
from millwheel.sdk.selections import Selection
from millwheel.sdk.typeinfo import accepts, normalise, type_name

__all__ = [
    "DROPPED",
    "UNKNOWN",
    "ComputationDeclaration",
    "DerivedStream",
    "Objection",
    "Reading",
    "StreamDeclaration",
    "StreamKind",
    "as_it_is",
    "declare_computation",
]

DROPPED: Final[Any] = object()
"""Stands for a value that a filter has dropped."""

UNKNOWN: Final[Any] = object()
"""Stands for a type that is unknown because of a mistake.

That mistake is reported elsewhere, so no other error follows.
"""


NO_DURATION: Final = Duration(0)


class StreamKind(Enum):
    """What feeds a stream. The value is the name of the method that declares it."""

    SOURCE = "source"
    STREAM = "stream"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class StreamDeclaration:
    """One call of ``source``, ``stream`` or ``external``."""

    name: str
    kind: StreamKind
    type: Any
    codec: Codec[Any] | None = None
    retention: Retention | None = None
    id_slack: Duration = NO_DURATION
    allowed_skew: Duration | None = None
    injectors: tuple[str, ...] | str = ()
    """A str is a mistake. It is kept so that validation can report it."""


@dataclass(frozen=True, slots=True)
class DerivedStream:
    """A stream whose records are made from those of another stream ``base``, where these are produced."""

    name: str
    base: str
    type: Any
    expand: Callable[[Any], Iterable[Any]]
    """The values that are made from one value of ``base``."""


def as_it_is(value: Any) -> Any:
    """The value itself: how a hook reads a stream under another name."""
    return value


@dataclass(frozen=True, slots=True)
class Objection:
    """A mistake in a computation that earlier versions submitted. It is refused when the topology is checked.

    Invariant: a topology that runs also loads after an upgrade. So ``TopologyGraph.plan``, by which workers load it,
    has no such mistakes. A check that is added later, and refuses what was submitted before, is one.

    Attributes:
        computation: The name of the computation, which has been declared.
        why: What is wrong, and what to do.
    """

    computation: str
    why: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How a computation reads one of its inputs, if its hook does not get the stream's records as they are."""

    called: str
    """The input's name for the hook."""
    type: Any
    """The type of the values that the hook gets. UNKNOWN if nothing states it."""
    convert: Callable[[Any], Any]
    """The value that the hook gets, or DROPPED. It is ``as_it_is`` where only the name differs."""
    steps: tuple[Expression | Selection, ...] | None = None
    """What ``convert`` does: an expression drops the values for which it is false, and a selection replaces a value.

    None: it does something else, such as calling a function.
    """
    drops_only: bool = False
    """Whether a value that ``convert`` does not drop is the stream's own, unchanged. So its encoding is, too."""


@dataclass(slots=True)
class ComputationDeclaration:
    """One call of ``add``. If a mistake prevents them, ``computation`` is None and the types are UNKNOWN."""

    name: str
    implementation: str
    computation: Computation[Any, Any] | None
    input_type: Any = UNKNOWN
    state_type: Any = UNKNOWN
    inputs: dict[str, KeyExtractor] = field(default_factory=dict)
    readings: dict[str, tuple[Reading, ...]] = field(default_factory=dict)
    """The inputs that the hook does not get as they are. With several readings it gets each record several times."""
    never_late: set[str] = field(default_factory=set)
    """The inputs whose late records are processed like others. ``late=`` does not apply: none of them is diverted."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """The output streams, with the types that ``outputs=`` or the computation itself states; otherwise UNKNOWN."""
    declared_outputs: frozenset[str] = frozenset()
    """The outputs whose types the computation itself states, and ``outputs=`` does not."""
    forwards: tuple[str, ...] = ()
    """The streams to which the computation produces its input records unchanged."""
    options: ComputationOptions = field(default_factory=ComputationOptions)
    problems: list[Problem] = field(default_factory=list)

    def read_types(self, stream: str, stream_type: Any) -> list[Any]:
        """The types of the values that the hook gets of an input. ``stream_type``: that of the stream itself."""
        return [one.type for one in self.readings.get(stream, ())] or [stream_type]

    @property
    def where(self) -> str:
        """The computation's name in problems."""
        return f"computation {self.name!r}"

    def problem(self, message: str, *, at: str = "") -> None:
        """Record a mistake. ``at`` names a part of the computation."""
        self.problems.append(Problem(f"{self.where}, {at}" if at else self.where, message))


def declare_computation(
    given: object, name: object, inputs: object, outputs: object, options: ComputationOptions
) -> ComputationDeclaration:
    """Convert the arguments of ``add``. Mistakes are added to the declaration's problems and never raised."""
    cls: Any = given if isinstance(given, type) else typing.get_origin(given) or type(given)
    is_computation = isinstance(cls, type) and issubclass(cls, Computation)
    runs = given._implementation() if isinstance(given, Computation) else cls
    declared = ComputationDeclaration(
        name if isinstance(name, str) else _kebab_case(_name_of(cls if is_computation else given)),
        f"{own_name(getattr(runs, '__module__', ''))}:{getattr(runs, '__qualname__', '')}",
        None,
    )
    if not isinstance(name, str | None):
        declared.problem(f"name= must be a str, not {name!r:.80}")
    _take_options(declared, options)
    if is_computation:
        _create(declared, given, cls)
    else:
        declared.problem(f"add() takes a subclass of millwheel.Computation, or an instance of one, not {given!r:.80}")
    _take_inputs(declared, inputs)
    _take_outputs(declared, outputs)
    _take_declared_outputs(declared)
    return declared


def _take_options(declared: ComputationDeclaration, options: ComputationOptions) -> None:
    """Record mistakes in the options. If there are any, the declaration keeps the default options."""
    wrong = list(computation_option_problems(options))
    for message in wrong:
        declared.problem(message)
    if not wrong:
        declared.options = options


def _name_of(given: object) -> str:
    return str(getattr(given, "__name__", type(given).__name__))


def _kebab_case(name: str) -> str:
    """``WindowCounter`` as ``window-counter``, ``HTTPLog`` as ``http-log``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).replace("_", "-").lower().strip("-")


def _create(declared: ComputationDeclaration, given: Any, cls: type) -> None:
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        hint = ""
        if hasattr(cls, "process_batch") and not issubclass(cls, BatchComputation):
            hint = ": derive it from millwheel.BatchComputation, in which process_batch takes its place"
        declared.problem(f"{cls.__name__} does not define {missing}, without which it cannot run{hint}")
        return
    if isinstance(given, Computation):
        declared.computation = given
    else:
        try:
            declared.computation = given()
        except Exception as error:
            declared.problem(
                f"{cls.__name__}() failed with {error_message(error)}; "
                f"if it has parameters, add an instance: add({cls.__name__}(...), ...)"
            )
    _take_types(declared, declared.computation if declared.computation is not None else given, cls)
    if declared.computation is not None:
        if isinstance(declared.computation, BatchComputation):
            _check_hook(declared, "process_batch", "batch")
        else:
            _check_hook(declared, "process_record", "record")
        _check_hook(declared, "process_timer", "timer")
        for message in batch_problems(declared.computation, declared.state_type, declared.options):
            declared.problem(message)


def _take_types(declared: ComputationDeclaration, owner: Any, cls: type) -> None:
    advice = f"write class {cls.__name__}(millwheel.Computation[Input, State])"
    try:
        stated = input_and_state_types(owner)
    except Exception as error:  # a forward reference to an undefined name
        declared.problem(f"the types that {cls.__name__} names cannot be found: {error_message(error)}")
        return
    if stated is None:
        declared.problem(f"{cls.__name__} does not state its types: {advice}")
        return
    declared.input_type, declared.state_type = (UNKNOWN if isinstance(one, TypeVar) else one for one in stated)
    open_types = [f"~{one.__name__}" for one in stated if isinstance(one, TypeVar)]
    if open_types:
        declared.problem(
            f"{cls.__name__} is generic in {', '.join(open_types)}: add a subclass or an instance that fills it, "
            f"such as {cls.__name__}[{', '.join('...' for _ in open_types)}]()"
        )


def _check_hook(declared: ComputationDeclaration, hook: str, argument: str) -> None:
    method = getattr(declared.computation, hook)
    wanted = f"{hook}(self, ctx, {argument})"
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        declared.problem(f"{hook} is a generator, whose body would never run: use ctx.produce(...) instead of yield")
    elif inspect.iscoroutinefunction(inspect.unwrap(method)) and not inspect.iscoroutinefunction(method):
        declared.problem(
            f"{hook} is `async def` under a decorator that is not, so nothing would await it: make the decorator's "
            "function `async def` too, and `await` the hook in it"
        )
    if not callable(method):
        declared.problem(f"{hook} is {type_name(type(method))}, and must be a method {wanted}")
        return
    try:
        inspect.signature(method).bind(None, None)
    except TypeError:
        declared.problem(f"{hook}{inspect.signature(method)} cannot be called: it must be {wanted}")


def _take_inputs(declared: ComputationDeclaration, inputs: object) -> None:
    example = "inputs={'stream': millwheel.key('field')}"
    if not isinstance(inputs, Mapping):
        declared.problem(f"inputs= takes a mapping from streams to keys, such as {example}, not {inputs!r:.80}")
        return
    if not inputs and getattr(declared.computation, "_begins_with", None) is None:
        declared.problem(f"it has no inputs, so nothing would ever call it: give it some, such as {example}")
    for stream, extractor in inputs.items():
        if not isinstance(stream, str):
            declared.problem(f"inputs= takes a mapping from streams to keys, such as {example}: {stream!r} is no name")
        elif not isinstance(extractor, KeyExtractor):
            shown = repr(extractor)
            if callable(extractor):  # a function's repr has an address
                shown = getattr(extractor, "__name__", shown)
            hint = f": write millwheel.key({shown})" if isinstance(extractor, str) or callable(extractor) else ""
            declared.problem(f"it is keyed by {shown:.80}, which is no key{hint}", at=f"input {stream!r}")
        else:
            declared.inputs[stream] = extractor


def _take_outputs(declared: ComputationDeclaration, outputs: object) -> None:
    if isinstance(outputs, str | bytes) or not isinstance(outputs, typing.Iterable):
        hint = f": write outputs=[{outputs!r}]" if isinstance(outputs, str) else ""
        declared.problem(f"outputs= takes a list of streams, or a mapping to their types, not {outputs!r:.80}{hint}")
        return
    for stream in outputs:
        if not isinstance(stream, str):
            declared.problem(f"outputs= takes a list of streams, or a mapping to their types: {stream!r} is no name")
            continue
        if stream in declared.outputs:
            declared.problem("it is listed twice", at=f"output {stream!r}")
        declared.outputs[stream] = outputs[stream] if isinstance(outputs, Mapping) else UNKNOWN


def _take_declared_outputs(declared: ComputationDeclaration) -> None:
    """Combine the computation's own ``declared_outputs`` with ``outputs=``, and record contradictions."""
    if declared.computation is None:
        return
    try:
        own: object = declared.computation.declared_outputs()
    except Exception as error:
        declared.problem(f"declared_outputs() failed with {error_message(error)}")
        return
    if own is None:
        return
    if not isinstance(own, Mapping):
        declared.problem(f"declared_outputs() must return a mapping from streams to types, or None, not {own!r:.80}")
        return
    late = declared.options.late
    diverted = [late.stream] if late.action is LateAction.DIVERT else []
    for stream in [stream for stream in declared.outputs if stream not in own and stream not in diverted]:
        known = ", ".join(repr(name) for name in own) or "nothing"
        declared.problem(
            f"outputs= names it, but the computation produces to {known} alone{did_you_mean(stream, list(own))}: "
            "correct outputs= or leave it out, or change the name that the computation was given",
            at=f"output {stream!r}",
        )
    for stream, annotation in own.items():
        _take_declared_output(declared, stream, annotation)


def _take_declared_output(declared: ComputationDeclaration, stream: str, annotation: Any) -> None:
    stated = declared.outputs.get(stream, UNKNOWN)
    if annotation is SAME_AS_INPUT:
        declared.forwards += (stream,)
        declared.outputs.setdefault(stream, UNKNOWN)
    elif stated is UNKNOWN:
        declared.declared_outputs |= {stream}
        declared.outputs[stream] = annotation
    elif not accepts(normalise(stated), normalise(annotation)):
        declared.problem(
            f"outputs= says that it carries {type_name(stated)}, but the computation produces {type_name(annotation)}: "
            "correct outputs= or leave it out, or change the computation's parameters",
            at=f"output {stream!r}",
        )
