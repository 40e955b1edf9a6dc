"""The base class of users' computations: one hook for records and one for timers (section 5, figure 7)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic

from millwheel.sdk.codecs import Codec
from millwheel.sdk.columns import ColumnWindows
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.migration import StoredState
from millwheel.sdk.records import Record, Timer
from millwheel.sdk.typeinfo import generic_arguments, normalise

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    In = TypeVar("In")
    State = TypeVar("State", default=None)
else:
    from typing import TypeVar

    In = TypeVar("In")
    State = TypeVar("State")

__all__ = [
    "NO_WINDOWS",
    "SAME_AS_INPUT",
    "Computation",
    "input_and_state_types",
    "overrides_migrate",
    "overrides_timer_hook",
]

NO_WINDOWS: Final = "it has no tumbling windows of aggregates"
"""Why the records of most computations run in hooks."""

SAME_AS_INPUT: Final[Any] = type("SAME_AS_INPUT", (), {"__doc__": "A type that `declared_outputs` may state."})
"""The type of a stream that carries a computation's records unchanged: see `Computation.declared_outputs`."""


class Computation(ABC, Generic[In, State]):
    """Application logic, which runs in the context of one key at a time (section 4.1).

    ``Computation[Query, Counts]`` takes records of type ``Query`` and keeps a ``Counts`` for each key. With inputs of
    several types, ``In`` is their union. Without state, write ``Computation[Query]`` or ``Computation[Query, None]``.

    Both hooks may be ``def`` or ``async def``. The hooks of one key never run at the same time. The hooks of different
    keys run in any order, also at the same time and on different machines. Keep data that must last, or that hooks
    share, in ``ctx.state`` and not in attributes of ``self``. Attributes set in ``__init__`` are parameters and equal
    for all keys: ``topology.add(DipDetector(threshold=0.2), ...)``.

    The state, timers and productions of a hook take effect together, after the hook returns. A hook that raises has no
    effect, and runs again according to ``on_failure``. A hook may also run again after a crash. Its effects on other
    systems must therefore be idempotent.
    """

    state_codec: Codec[State] | None = None
    """Set this to encode the state with your own codec. By default the state's type selects the encoding."""

    state_version: int = 1
    """The version of the state's type. Increase it by one if stored states do not decode as the new type.

    That is the case if a field is removed, renamed or gets another type. A new field with a default needs no new
    version. Of a growing state, it is the version of the fields that are no collections.
    """

    _begins_with: str | None = None
    """The key whose timer is due when the computation begins, without any input. Steps of the library alone set it."""

    _feeds: bool = False
    """Whether it reads records from outside: while productions wait for ACKs, only timers run that hold the watermark.

    Steps of the library alone set it.
    """

    _writes: bool = False
    """Whether its hooks write to another system: no hook begins while a commit of its interval is not durable.

    So only the last write of a key may come again after a crash. Steps of the library alone set it.
    """

    _collects_for: int = 0
    """For how many microseconds a commit without productions may wait for more records, of those under load.

    What a hook of records does must be only to collect them in its state. Steps of the library alone set it.
    """

    _remedy: str = ""
    """What helps if its hooks fail, in place of ``on_failure``, which it has not. Steps of the library alone set it."""

    def _by_columns(self) -> ColumnWindows | None:
        """How its windows are kept by columns. Steps of the library override it."""
        return None

    def _why_not_by_columns(self) -> str:
        """Why its records run in hooks. Empty: ``_by_columns`` says how its windows are kept.

        A step that overrides one of the two methods overrides both.
        """
        return NO_WINDOWS

    def _why_one_by_one(self, output: str) -> str | None:
        """Why each record that it produces to an output has a value. Empty: no computation but a source has columns.

        None: the records may be columns of Arrow. A source overrides it.
        """
        return ""

    def _reads(self) -> str:
        """What it reads from outside, which an update must not change. Steps of the library override it."""
        return ""

    async def _close(self) -> None:
        """Give back what it holds outside of its states. Steps of the library override it, and a harness calls it."""

    def migrate(self, stored: StoredState) -> State:
        """Convert a stored state of an earlier version. MillWheel calls this when it next reads a key's state.

        Define it if ``state_version`` is above 1. There may be several versions between the stored one and the present
        one. The method may run several times for one state, so the result should depend on ``stored`` alone.

        Args:
            stored: ``stored.version`` is its version, and ``stored.read(OldState)`` is its value.

        Returns:
            The state of the present version.

        Raises:
            UsageError: The class does not override this method.
        """
        raise UsageError(
            f"{type(self).__name__} meets a state of version {stored.version}, and defines no migrate(self, stored)"
        )

    def declared_outputs(self) -> Mapping[str, Any] | None:
        """The streams that this computation produces to, with their types, if the computation itself defines them.

        Override this if the names or types of the outputs depend on parameters of the computation. ``outputs=`` is then
        optional in ``Topology.add``; if it is present, it is checked against this result. The type
        ``millwheel.SAME_AS_INPUT`` means the type of the inputs.

        Returns:
            The types by stream. None, the default: ``outputs=`` alone defines them.
        """
        return None

    @abstractmethod
    def process_record(self, ctx: Context[State], record: Record[In]) -> Awaitable[None] | None:
        """Process one record of an input.

        Its effects happen exactly once, despite crashes and duplicate deliveries (G1).

        Records do not come in the order of their timestamps. ``record.late`` says whether a record is behind the low
        watermark. With ``late=Late.DROP`` or ``divert(...)``, late records do not reach this hook.

        Args:
            ctx: The context of the record's key. It is valid until the hook returns.
            record: The record.
        """

    def process_timer(self, ctx: Context[State], timer: Timer) -> Awaitable[None] | None:
        """Process one timer that is due: one that ``ctx.set_timer`` set, and that was neither cancelled nor replaced.

        Override it in a computation that sets timers. The timers of a key fire in increasing time, separately for event
        time and wall time. A timer never fires before the low watermark, or the wall clock, has reached its time
        (section 4.6). When an event-time timer fires, every record below its time is processed, except late ones.

        Args:
            ctx: The context of the timer's key. It is valid until the hook returns.
            timer: The timer.
        """
        raise UsageError(
            f"{type(self).__name__} was woken by the timer {timer.tag!r} of key {ctx.key!r}, "
            "but does not override process_timer(self, ctx, timer)"
        )

    def _given_up(self, ctx: Context[State], timer: Timer) -> None:
        """Forget what waited for a timer that was given up. Only steps of the library override it.

        It runs in the commit of the dead letter. An override reads the state before it changes anything, and calls no
        function of the user's: either would fail as the hook did.

        Args:
            ctx: The context of the timer's key.
            timer: The timer whose hook failed for the last time.
        """

    def _key_in_letters(self, key: str, values: Callable[[], Sequence[In]]) -> str:
        """The key that a dead letter shows. Steps of the library override it if their keys are not the user's.

        Args:
            key: The key of the hook.
            values: Returns what the hook got of the record. Nothing for a timer. It raises if it cannot be decoded.
        """
        return key

    def _implementation(self) -> type:
        """The class whose code this is. A step of the library that runs a computation of the user's overrides it."""
        return type(self)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments: Any) -> Any:
            # Computation[Query] means Computation[Query, None].
            if cls is Computation and (not isinstance(arguments, tuple) or len(arguments) == 1):
                arguments = (*(arguments if isinstance(arguments, tuple) else (arguments,)), None)
            return super().__class_getitem__(arguments)


def input_and_state_types(computation: Any) -> tuple[Any, Any] | None:
    """The input type and the state type that a computation's class states, also through intermediate generic classes.

    Args:
        computation: An instance, a class, or a class with type arguments. The arguments of an instance, such as
            ``Join[Query, Model]()``, count too.

    Returns:
        Both types. None if the class states no types. A type variable without an argument stays in the result.
    """
    owner = computation
    if isinstance(computation, Computation):
        owner = getattr(computation, "__orig_class__", type(computation))
    arguments = generic_arguments(owner, Computation)
    if arguments is None:
        return None
    return normalise(arguments[0]), normalise(arguments[1])


def overrides_migrate(computation: Computation[Any, Any]) -> bool:
    """Whether the computation defines how states of earlier versions are converted."""
    return getattr(computation.migrate, "__func__", None) is not Computation.migrate


def overrides_timer_hook(computation: Computation[Any, Any]) -> bool:
    """Whether the computation defines ``process_timer``."""
    return type(computation).process_timer is not Computation.process_timer
