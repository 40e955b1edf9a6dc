"""The error for a name that does not exist, with the nearest name that the caller may know. Pure.

Invariant: the error that leaves a server names no topology that its caller may not read. What raises the error knows no
caller: a master's core decides later than the call. So the error keeps all names, and :meth:`shown_to` chooses among
them when the call is answered. Who could break it: a way out of a server other than :func:`millwheel.rpc.errors.abort`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millwheel.errors import did_you_mean
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["UnknownNameError"]


class UnknownNameError(RequestError):
    """There is no such topology, or another thing that belongs to one (NOT_FOUND)."""

    def __init__(self, what: str, name: str, known: Mapping[str, str | None], remedy: str, reason: str) -> None:
        """
        Args:
            what: The kind of thing, such as ``topology``.
            name: The name that does not exist.
            known: The names that exist, each with its topology. None: it belongs to none.
            remedy: What to do.
            reason: The reason code.
        """
        hint = did_you_mean(name, sorted(known))
        super().__init__(FailureCode.NOT_FOUND, f"there is no {what} {name!r}{hint}", remedy, reason=reason)
        self._what = what
        self._name = name
        self._known = known

    def shown_to(self, may_read: Callable[[str | None], bool]) -> UnknownNameError:
        """Return the error for a caller who may read these topologies. None stands for the whole cluster."""
        known = {name: topology for name, topology in self._known.items() if may_read(topology)}
        return UnknownNameError(self._what, self._name, known, self.remedy, self.reason)
