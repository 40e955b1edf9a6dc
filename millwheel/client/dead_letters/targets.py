"""Where a letter's record goes: to the computation that failed, under the stream and the key that it had (4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.client.control import ControlClient
from millwheel.client.dead_letters.letters import Letter
from millwheel.client.injector.routing import ConsumerRouting
from millwheel.client.injector.routing_follower import routing_from_wire
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["LetterTarget", "LetterTargets", "NoTargetError"]


@dataclass(frozen=True, slots=True)
class LetterTarget:
    """A computation, and one of its input streams, by its full name."""

    incarnation: IncarnationId
    stream: str


class NoTargetError(Exception):
    """A letter cannot be replayed. The text says why, and what to do."""


class LetterTargets:
    """Finds the computations of letters, and the owners of their intervals."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._known: dict[LetterTarget, LetterTarget | str] = {}
        """By what letters name: the present target, or why there is none."""

    async def check(self, letter: Letter) -> LetterTarget:
        """The target of a letter.

        Raises:
            NoTargetError: It has none, or none any more.
            RequestError: The masters do not answer.
        """
        content = letter.content
        if letter.is_timer:
            raise NoTargetError(
                f"timer {content.timer_tag!r} of key {content.key!r} has no record to send again: what it waited for "
                "is gone; correct its key by records, and discard the letter"
            )
        if not content.incarnation:
            raise NoTargetError(
                "a version of MillWheel before dead letters could be replayed wrote it: send its record by an injector"
            )
        named = LetterTarget(IncarnationId(content.incarnation), letter.stream)
        if named not in self._known:
            self._known[named] = await self._present(letter)
        found = self._known[named]
        if isinstance(found, str):
            raise NoTargetError(found)
        return found

    async def _present(self, letter: Letter) -> LetterTarget | str:
        """The present target. A restore of a snapshot gave the computation another incarnation id."""
        record = (await self._control.get_topology(letter.topology)).topology
        named = letter.content.incarnation
        target = LetterTarget(IncarnationId(record.former_incarnations.get(named, named)), letter.stream)
        return self._problem(letter, target, record) or target

    @staticmethod
    def _problem(letter: Letter, target: LetterTarget, record: catalog.TopologyRecord) -> str:
        computation = f"computation {letter.content.computation!r} of topology {letter.topology!r}"
        present = record.incarnations.get(letter.content.computation, "")
        if not present:
            return f"{computation} was removed: send the record by an injector, or discard the letter"
        if present != target.incarnation:
            return (
                f"{computation} was removed and added again since: the one that failed the record is gone with its "
                "state; send the record by an injector, or discard the letter"
            )
        spec = next(one for one in record.spec.computations if one.name == letter.content.computation)
        if target.stream not in {edge.stream for edge in spec.inputs}:
            return f"{computation} does not read stream {target.stream!r} any more: discard the letter"
        if spec.late_policy == specs.LATE_POLICY_DROP:
            return (
                f"{computation} drops late records, and a replayed record is mostly late: update it without "
                "late=mw.Late.DROP, and replay the letter then"
            )
        return ""

    async def consumer(self, target: LetterTarget) -> ConsumerRouting:
        """The owners of the target's intervals now.

        Raises:
            RequestError: The computation does not read the stream any more (FAILED_PRECONDITION), or the masters do
                not answer.
        """
        routing = routing_from_wire(await self._control.routing(target.stream))
        consumer = routing.consumers.get(target.incarnation)
        if consumer is None:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"{target.incarnation} does not read stream {target.stream!r} any more",
                "list the letters again",
            )
        return consumer
