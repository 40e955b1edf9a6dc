"""Keyed streams: records with a key, and the steps that keep state by key (sections 4.2 and 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, Unpack, overload

from millwheel.sdk.computation import Computation
from millwheel.sdk.keys import KeyExtractor
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream
from millwheel.streams.windowed import WindowedStream
from millwheel.windows.assigners import Assigner, SessionWindows

__all__ = ["KeyedStream"]

T = TypeVar("T")
U = TypeVar("U")


class KeyedStream(Generic[T]):
    """The records of a stream with a key: what :meth:`Stream.key_by` returns.

    A step that keeps state has a name. It is the name of its computation and of its output stream. The state is stored
    under it, so it should stay when the program changes.
    """

    def __init__(self, stream: Stream[T], extractor: KeyExtractor) -> None:
        self.stream = stream
        self.extractor = extractor

    @property
    def input(self) -> Input:
        """The stream as a step's input."""
        return Input(self.stream.branches, self.stream.record_type, self.extractor)

    @overload
    def process(
        self,
        name: str,
        computation: Computation[T, Any] | type[Computation[T, Any]],
        outputs: Mapping[str, type[U]],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def process(
        self,
        name: str,
        computation: Computation[T, Any] | type[Computation[T, Any]],
        outputs: Mapping[str, Any],
        **options: Unpack[StepOptions],
    ) -> Stream[Any]: ...
    def process(
        self,
        name: str,
        computation: Computation[T, Any] | type[Computation[T, Any]],
        outputs: Mapping[str, Any],
        **options: Unpack[StepOptions],
    ) -> Stream[Any]:
        """A computation of the user's own.

        Args:
            name: The computation's name.
            computation: Its class, or an instance if it has parameters.
            outputs: The streams that it produces to, with their types.
            options: As for :meth:`Topology.add`.

        Returns:
            The first of ``outputs``. :meth:`Topology.stream` returns the others.
        """
        topology = self.stream.topology
        declare_step(topology, name, computation, [self.input], outputs, options)
        first = next(iter(outputs), name)
        return Stream(topology, (Branch(first),), outputs.get(first))

    def window(self, windows: Assigner | SessionWindows) -> WindowedStream[T]:
        """The records by window.

        Args:
            windows: From ``windows.tumbling``, ``windows.sliding`` or ``windows.session``.
        """
        return WindowedStream(self.stream, self.input, windows)
