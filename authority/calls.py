"""What calls change in a shard: accepted sequencers, expected sets, removals and percentiles (7.2). Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

from millwheel.authority.injected import InjectorGroup
from millwheel.authority.journal import Expect, Percentile, Remove
from millwheel.authority.messages import (
    InjectorsExpected,
    PercentileRequested,
    RemovalRequested,
    SequencerOffered,
)
from millwheel.authority.percentiles import percentile_value
from millwheel.authority.registry import AnyGroup, Registry
from millwheel.authority.unjournaled import UnjournaledChanges
from millwheel.model.incarnation import injector_group
from millwheel.rpc.watermarks import AcceptRefusedError

__all__ = ["AuthorityCall", "AuthorityCalls"]

AuthorityCall: TypeAlias = SequencerOffered | InjectorsExpected | RemovalRequested | PercentileRequested


class AuthorityCalls:
    """Applies calls to a shard's state. Each call waits in ``unjournaled`` until its change is journaled."""

    def __init__(self, registry: Registry, unjournaled: UnjournaledChanges, broadcast: Callable[[str], int]) -> None:
        """``broadcast`` returns the value that was last broadcast for a group."""
        self._registry = registry
        self._unjournaled = unjournaled
        self._broadcast = broadcast

    def apply(self, call: AuthorityCall) -> AnyGroup | None:
        """Apply a call. A percentile is requested of a known group only.

        Returns:
            The group whose members have changed. None if there is none.

        Raises:
            AcceptRefusedError: The sequencer is out of date.
            ReportNotReceivedError: The report whose confirmation is requested was not received.
        """
        match call:
            case SequencerOffered():
                return self._accept_sequencer(call)
            case InjectorsExpected():
                return self._expect_injectors(call)
            case RemovalRequested():
                self._remove(call)
            case PercentileRequested():
                self._decide_percentile(call)
            case _:
                assert_never(call)
        return None

    def _accept_sequencer(self, event: SequencerOffered) -> AnyGroup:
        token, group, member, sequencer = event.token, event.group, event.member, event.sequencer
        if self._registry.is_over(group, sequencer):
            raise AcceptRefusedError(f"sequencer {sequencer}: {group} was removed since it was drawn")
        if isinstance(member, str):
            injector = self._registry.injector(group)
            self._unjournaled.add(token, group, injector.accept(member, sequencer, event.report_number))
            return injector
        keyed = self._registry.keyed(group)
        self._unjournaled.add(token, group, keyed.accept(member, sequencer))
        return keyed

    def _expect_injectors(self, event: InjectorsExpected) -> InjectorGroup:
        name, names = injector_group(event.stream), sorted(set(event.processes))
        injector = self._registry.injector(name)
        injector.expect(names, event.as_of)
        self._unjournaled.add(event.token, name, Expect(name, names, event.as_of))
        return injector

    def _remove(self, event: RemovalRequested) -> None:
        token, group, up_to = event.token, event.group, event.up_to
        found = self._registry.get(group)
        if isinstance(found, InjectorGroup) and 0 < up_to <= self._registry.ended.get(group, 0):
            # This change alters nothing. It delays the answer until everything before it is journaled.
            self._unjournaled.add(token, group, Expect(group, sorted(found.expected), found.expected_as_of))
            return
        self._registry.remove(group, up_to)
        self._unjournaled.add(token, group, Remove(group, up_to))

    def _decide_percentile(self, event: PercentileRequested) -> None:
        group, basis_points = event.group, event.basis_points
        found = self._registry.get(group)
        assert found is not None
        value = percentile_value(found.work(event.since), basis_points, self._broadcast(group), found.percentiles)
        found.percentiles[basis_points] = value
        self._unjournaled.add(event.token, group, Percentile(group, basis_points, value))
