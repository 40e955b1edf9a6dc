"""A state for each key that a function updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Generic, TypeVar

from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.records import Record

__all__ = ["Update"]

S = TypeVar("S")


class Update(Computation[Any, list[S]], Generic[S]):
    """Calls ``function(state, value)``, which returns the next state and the results, for each record of a key.

    Args:
        initial: The state of a key without records. Each key gets a copy of its own.
        function: Returns the next state, and the results. The state None forgets the key.
        output: The stream of the results. They have the timestamps of the records.
        state: The type of the states.
        result: The type of the results.
    """

    def __init__(
        self,
        initial: S,
        function: Callable[[S, Any], tuple[S | None, Iterable[Any]]],
        output: str,
        state: Any,
        result: Any,
    ) -> None:
        self.initial = initial
        self.function = function
        self.output = output
        self.result = result
        # The type argument for S. It defines the type of the state.
        self.__orig_class__ = Update[state]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[list[S]], record: Record[Any]) -> None:
        """Update the state, and produce the results."""
        kept = ctx.state
        state, results = self.function(kept[0] if kept else deepcopy(self.initial), record.value)
        if state is None:
            kept.clear()
        elif kept:
            kept[0] = state
        else:
            kept.append(state)
        for result in results:
            ctx.produce(self.output, result)
