"""How a stateful step becomes a computation of the topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol, TypedDict

from millwheel.model.time import Duration
from millwheel.operators import LEFT, RIGHT
from millwheel.sdk.batches.computation import BatchComputation
from millwheel.sdk.computation import Computation
from millwheel.sdk.declarations import UNKNOWN, Reading, as_it_is, declare_computation
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import KeyExtractor, may_be_without_key
from millwheel.sdk.options import (
    STRAGGLER_DELAY,
    ComputationOptions,
    FailureAction,
    FailurePolicy,
    Late,
    divert,
    retry,
)
from millwheel.sdk.plan import is_known
from millwheel.sdk.selections import Selection
from millwheel.sdk.spreading import copier, spreader
from millwheel.sdk.sure_steps import never_raise
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import type_name
from millwheel.streams.checked import refuse_unknown
from millwheel.streams.derivations import DerivedKeyExtractor, KeyTexts, derivation_of
from millwheel.streams.steps import (
    Branch,
    Step,
    are_disjoint,
    compiled,
    drops_only,
    expands,
    keeps_value,
    key_before,
    known_steps,
    on_a_copy,
    to_one,
    until_last_filter,
)

__all__ = ["Input", "Keyed", "StepOptions", "declare_step", "other_side", "outer_sides", "refuse_dead_letters", "sides"]

_SHARDS = 1_024
"""How many keys the records are spread over that a filter drops before their key is read."""


class StepOptions(TypedDict, total=False):
    """The options of a step that has a computation of its own: those of :meth:`Topology.add`.

    ``late`` may also be the name of a stream: late records are produced to it, as the step would have got them.
    """

    exactly_once: bool
    strong: bool
    late: Late | str
    on_failure: FailurePolicy
    straggler_delay: Duration


class Input(NamedTuple):
    """One input of a step: a stream's branches, with their type and key.

    ``port`` is the name by which the step's hook knows it. Empty: the stream's own name. ``never_late``: its
    late records are processed like others, and ``late=`` does not apply to them.
    """

    topology: TopologyGraph
    branches: Sequence[Branch]
    record_type: Any
    extractor: KeyExtractor
    port: str = ""
    never_late: bool = False

    @property
    def known_type(self) -> Any:
        """The type of the records, or Any if nothing states it."""
        return self.record_type if is_known(self.record_type) else Any


class Keyed(Protocol):
    """A stream with a key."""

    @property
    def input(self) -> Input:
        """The stream as a step's input."""


def outer_sides(name: str, outer: str) -> tuple[bool, bool]:
    """Whether the records of the left and of the right side are kept without a partner.

    Raises:
        UsageError: ``outer`` is none of the values that a join takes.
    """
    if outer not in ("", "left", "right", "both"):
        raise UsageError(f'join {name!r}: outer= takes "left", "right" or "both", not {outer!r}')
    return outer in ("left", "both"), outer in ("right", "both")


def other_side(name: str, other: Any) -> Input:
    """The input of step ``name`` that ``other`` is.

    Raises:
        UsageError: ``other`` is no stream with a key. Or it is ordered, which has no effect there.
    """
    if getattr(other, "is_side", False):
        given: Input = other.input
        return given
    if hasattr(other, "ties"):
        raise UsageError(f"step {name!r} ignores ordered_by_time() of another stream: leave it out")
    raise UsageError(f"step {name!r} takes another stream with a key, not {type_name(type(other))}: add .key_by(...)")


def sides(name: str, left: Input, other: Keyed) -> tuple[Input, Input]:
    """The inputs of the join ``name``.

    Raises:
        UsageError: They are of two topologies. Or as by :func:`other_side`.
    """
    right = other_side(name, other)
    if left.topology is not right.topology:
        raise UsageError("a join takes two streams of one topology: it reads another one's stream by external()")
    return left._replace(port=LEFT), right._replace(port=RIGHT)


def refuse_dead_letters(name: str, options: StepOptions, timer: str) -> None:
    """Refuse ``on_failure=mw.dead_letter()`` for a step with one timer for all records of a key that wait.

    A timer that is given up would leave the records behind it without a timer.

    Args:
        name: The step's name.
        options: Its options.
        timer: What the timer does, and why: ``gets its records in order, so ...``.

    Raises:
        UsageError: The policy is ``dead_letter()``.
    """
    policy = options.get("on_failure")
    if isinstance(policy, FailurePolicy) and policy.action is FailureAction.DEAD_LETTER:
        raise UsageError(
            f"step {name!r} {timer}, and no record: use retry() or stop(), or let the hook produce "
            "what fails to a stream of its own"
        )


def declare_step(
    name: str,
    computation: Computation[Any, Any] | type[Computation[Any, Any]],
    inputs: Sequence[Input],
    outputs: Mapping[str, Any],
    options: StepOptions,
) -> None:
    """Declare a computation that reads ``inputs``. Mistakes are recorded, and shown by ``validate``.

    Raises:
        UsageError: There is no such option.
    """
    refuse_unknown(f"step {name!r}", options, sorted(StepOptions.__optional_keys__))
    topology = inputs[0].topology
    read: dict[str, list[tuple[Input, Branch]]] = {}
    for given in inputs:
        for branch in given.branches:
            read.setdefault(branch.stream, []).append((given, branch))
    by_columns = _may_read_columns(computation)
    extractors = {stream: _key_of(topology, stream, each, by_columns) for stream, each in read.items()}
    settings = _options(options)
    late = settings.late.stream if isinstance(settings.late, Late) else None  # ``validate`` refuses any other
    if late is not None and late not in outputs:
        outputs = {**outputs, late: UNKNOWN}
    declared = declare_computation(computation, name, extractors, outputs, settings)
    for stream, each in read.items():
        if message := _problem(each):
            declared.problem(message, at=f"input {stream!r}")
            continue
        if all(given.never_late for given, _ in each):
            declared.never_late.add(stream)
        copy = copier(topology, stream) if len(each) > 1 else None
        readings = tuple(_reading(given, branch, copy) for given, branch in each)
        if not _plain(stream, readings):
            declared.readings[stream] = readings
    topology.declare(declared)


def _reading(given: Input, branch: Branch, copy: Callable[[Any], Any] | None) -> Reading:
    """``copy``: None if the branch is the only one that reads the record's value."""
    steps = branch.steps if copy is None else on_a_copy(branch.steps, copy)
    convert = to_one(steps) if steps else as_it_is
    called = given.port or branch.stream
    return Reading(called, given.record_type, convert, known_steps(steps), drops_only=drops_only(steps))


def _problem(read: Sequence[tuple[Input, Branch]]) -> str:
    """What is wrong with how a stream is read. Empty: nothing."""
    if any(expands(branch.steps) for _, branch in read):
        return _EXPANDED
    for (one, branch), (other, next_branch) in combinations(read, 2):
        same_key = _signature(branch, one.extractor) == _signature(next_branch, other.extractor)
        if not same_key and not are_disjoint(branch.steps, next_branch.steps):
            return _TWO_KEYS
    return ""


_TWO_KEYS = (
    "it is read twice with different keys or after different functions: give one of both a stream of its own by "
    ".named('...')"
)
_EXPANDED = (
    "flat_map makes several values of one record, which may have different keys: give them a stream of their own by "
    ".flat_map(...).named('...') before key_by"
)


def _signature(branch: Branch, extractor: KeyExtractor) -> Any:
    """What determines the key of a record: equal signatures give equal keys."""
    return extractor, () if keeps_value(branch.steps) else branch.steps


def _plain(stream: str, readings: Sequence[Reading]) -> bool:
    """Whether the hook gets the stream's records as they are."""
    return len(readings) == 1 and readings[0].called == stream and readings[0].convert is as_it_is


def _may_read_columns(computation: Computation[Any, Any] | type[Computation[Any, Any]]) -> bool:
    """Whether the computation reads columns without a value for each row: windows and sinks may."""
    if not isinstance(computation, Computation):
        return False
    if isinstance(computation, BatchComputation) and computation._takes_columns:
        return True
    return not computation._why_not_by_columns()


def _key_of(
    topology: TopologyGraph, stream: str, read: Sequence[tuple[Input, Branch]], by_columns: bool
) -> KeyExtractor:
    """The key of a stream's records, from their values. No record has two keys, as ``_problem`` says.

    A value that all branches drop has no key. It is spread, and dropped again where it is read. Senders of columns run
    no steps: where all others have one key, it has that key there, if no step could raise, and if the reader drops it
    by columns.
    """
    if _keyed_as_they_are(read):
        return read[0][0].extractor
    if len(read) == 1 and (found := key_before(read[0][1].steps, read[0][0].extractor)) is not None:
        extractor, record_type = found
        if not may_be_without_key(extractor, record_type):
            return extractor
    keyed = [(one, branch) for one, branch in read if not expands(branch.steps)]
    derivation = derivation_of([(branch, one.extractor, one.record_type) for one, branch in keyed])
    same = _key_for_all(*read[0], by_columns) if len(read) == 1 else None
    if same is not None and not until_last_filter(read[0][1].steps):
        return DerivedKeyExtractor(function=read[0][0].extractor.function, derivation=derivation, same=same)
    copy = copier(topology, stream)
    function = spreader(topology, stream, _SHARDS)
    for one, branch in reversed(keyed):
        function = _key_function(one.extractor, branch.steps, copy, function)
    return DerivedKeyExtractor(function=function, derivation=derivation, same=same, drops=True)


def _key_for_all(given: Input, branch: Branch, by_columns: bool) -> str | None:
    """The key that all records of a branch may have, if nothing is read from any of them. Else None.

    A reader that makes a value of each row gets what filters drop from its senders spread, not in one interval.

    *Invariant: a record for which a filter raises fails at its sender, alone.* At the reader it would block all others,
    as one does for which a function behind the last filter raises.
    """
    same, steps = given.extractor._for_all, branch.steps
    if same is None or expands(steps):
        return None
    deciding, known = until_last_filter(steps), known_steps(steps)
    if not deciding:
        return same
    if known is None or not by_columns:
        return None
    before = next((step.record_type for step in known if isinstance(step, Selection)), given.record_type)
    return same if never_raise(known[: len(deciding)], before) else None


def _key_function(
    extractor: KeyExtractor,
    steps: Sequence[Step],
    copy: Callable[[Any], Any],
    otherwise: Callable[[Any], str],
) -> Callable[[Any], str]:
    """A function from a value before the steps to its key after them. A value that they drop gets ``otherwise``.

    *Invariant (G1): what passes has the key that the extractor reads from what the steps make*, in each version of a
    program. So a record that is sent again finds the ids of its key.
    """
    if (same := extractor._for_all) is not None:
        # What a map makes after the last filter does not matter. So it runs once, for the hook.
        return compiled(on_a_copy(until_last_filter(steps), copy), repr(same), "next_key(value)", next_key=otherwise)
    steps, texts = on_a_copy(steps, copy, key_changes=extractor.needs_copy), KeyTexts(extractor)
    return compiled(steps, "texts[made.__class__](made)", "next_key(value)", texts=texts, next_key=otherwise)


def _keyed_as_they_are(read: Sequence[tuple[Input, Branch]]) -> bool:
    """Whether each record of the stream has a key without its steps. No key is read from what a filter drops."""
    if any(not keeps_value(branch.steps) and not expands(branch.steps) for _, branch in read):
        return False
    return all(not may_be_without_key(one.extractor, one.record_type) for one, _ in read) or any(
        not branch.steps or expands(branch.steps) for _, branch in read
    )


def _options(given: StepOptions) -> ComputationOptions:
    late = given.get("late", Late.PROCESS)
    return ComputationOptions(
        exactly_once=given.get("exactly_once", True),
        strong=given.get("strong", True),
        late=divert(late) if isinstance(late, str) else late,
        on_failure=given.get("on_failure") or retry(),
        straggler_delay=given.get("straggler_delay", STRAGGLER_DELAY),
    )
