"""The class that users extend: two hooks, called once per record and once per timer (section 5, figure 7)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic

from millwheel.sdk.codecs import Codec
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.migration import StoredState
from millwheel.sdk.model import Record, Timer
from millwheel.sdk.typeinfo import generic_arguments, normalise

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    In = TypeVar("In")
    State = TypeVar("State", default=None)
else:
    from typing import TypeVar

    In = TypeVar("In")
    State = TypeVar("State")

__all__ = ["SAME_AS_INPUT", "Computation", "input_and_state_types", "overrides_migrate", "overrides_timer_hook"]

SAME_AS_INPUT: Final[Any] = type("SAME_AS_INPUT", (), {"__doc__": "A type that `declared_outputs` may state."})
"""The type of a stream to which a computation produces its records as they came: see `Computation.declared_outputs`."""


class Computation(ABC, Generic[In, State]):
    """Application logic, in the context of one key at a time (section 4.1).

    ``Computation[Query, Counts]`` takes records of ``Query`` and keeps a ``Counts`` for each key. With
    several inputs of different types, ``In`` is their union; without state, write ``Computation[Query]``
    or ``Computation[Query, None]``.

    Both hooks may be ``def`` or ``async def``. For one key they run one after the other, never two at once;
    for different keys in any order, also at the same time and on different machines. So nothing that
    must last or be shared belongs into attributes of ``self``: it belongs into ``ctx.state``. Attributes set in
    ``__init__`` are parameters, the same for all keys: ``topology.add(DipDetector(threshold=0.2), ...)``.

    A hook's changes of state, timers and productions take effect together, once it has returned; one that
    raises leaves no trace, and is run again as ``on_failure`` says. It may also run again after a crash, so
    effects on other systems must be idempotent.
    """

    state_codec: Codec[State] | None = None
    """Set it to encode the state in a way of your own; the default is chosen by the state's type."""

    state_version: int = 1
    """Raise it by one when the state's type changes so that stored states cannot be read as the new one any more:
    when a field goes, is renamed or gets another type. A new field with a default needs nothing."""

    def migrate(self, stored: StoredState) -> State:
        """The state that a ``stored`` one of a smaller version becomes. Called when a key's state is next read, also
        where several versions lie between: ``stored.version`` says which it is, ``stored.read(OldState)`` what it was.

        To be defined once ``state_version`` is above 1. It should depend on ``stored`` alone: it may run several times.
        """
        raise UsageError(
            f"{type(self).__name__} meets a state of version {stored.version}, and defines no migrate(self, stored)"
        )

    def declared_outputs(self) -> Mapping[str, Any] | None:
        """The streams that this computation produces to, with their types, where the computation itself knows them.

        Override it in a computation that takes the names of its outputs, or what decides on their types, as parameters.
        Then ``outputs=`` may be left out where the computation is added; what is said there is checked against this.
        The type ``millwheel.SAME_AS_INPUT`` stands for the type of the inputs.

        Returns:
            The types by stream; None, the default, where ``outputs=`` alone says.
        """
        return None

    @abstractmethod
    def process_record(self, ctx: Context[State], record: Record[In]) -> Awaitable[None] | None:
        """Called once for each record of each input, whatever crashes or is delivered twice (G1).

        Called in no order of timestamps: a record may be older than one that came before it, and
        ``record.late`` tells whether it is behind the low watermark. Not called for late records under
        ``late=Late.DROP`` or ``divert(...)``.
        """

    def process_timer(self, ctx: Context[State], timer: Timer) -> Awaitable[None] | None:
        """Called once for each timer that is due: set with ``ctx.set_timer``, neither cancelled nor set anew.

        The timers of a key fire in increasing time, each domain by itself, never before the low
        watermark (or the wall clock) has reached them (section 4.6). Every record below a watermark
        timer's time has been processed by then, late ones aside. Not called in a computation that
        sets no timers; one that does must override it.
        """
        raise UsageError(
            f"{type(self).__name__} was woken by the timer {timer.tag!r} of key {ctx.key!r}, "
            "but does not override process_timer(self, ctx, timer)"
        )

    if not TYPE_CHECKING:

        def __class_getitem__(cls, arguments: Any) -> Any:
            # Computation[Query] means Computation[Query, None].
            if cls is Computation and (not isinstance(arguments, tuple) or len(arguments) == 1):
                arguments = (*(arguments if isinstance(arguments, tuple) else (arguments,)), None)
            return super().__class_getitem__(arguments)


def input_and_state_types(computation: Any) -> tuple[Any, Any] | None:
    """The types that a computation's class states, looked up through generic classes between.

    ``computation`` is an instance, whose own arguments (``Join[Query, Model]()``) count too, a class, or
    its alias. None where the class names no types; a type variable that nothing fills stays one.
    """
    owner = computation
    if isinstance(computation, Computation):
        owner = getattr(computation, "__orig_class__", type(computation))
    arguments = generic_arguments(owner, Computation)
    if arguments is None:
        return None
    return normalise(arguments[0]), normalise(arguments[1])


def overrides_migrate(computation: Computation[Any, Any]) -> bool:
    """Whether it says how states of earlier versions are read."""
    return type(computation).migrate is not Computation.migrate


def overrides_timer_hook(computation: Computation[Any, Any]) -> bool:
    """Whether its timers have somewhere to go."""
    return type(computation).process_timer is not Computation.process_timer
