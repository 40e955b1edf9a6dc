"""What an update does to a topology's computations. It asks before it deletes the state of one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from millwheel.cli.asking import confirm
from millwheel.model.catalog import LIVE_STATES
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["Replacement", "refuse_other_name", "replacement_of"]

_NO_STATE: Final = ("", "None")
"""The types of states of computations without state. An old spec states none."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The computations that an update of ``topology`` adds and removes, by name."""

    topology: str
    version: int = 0
    """The version that is replaced. 0: the topology has ended."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    """Those of ``removed`` that have state."""

    def show(self) -> None:
        """Print it on stderr, a line for each computation."""
        for name in self.added:
            print(f"adds computation {name}, without state", file=sys.stderr)
        for name in self.removed:
            print(f"removes computation {name}{': its state is deleted' * (name in self.deleted)}", file=sys.stderr)

    def names(self) -> dict[str, list[str]]:
        """The same for programs. ``deleted`` has those of ``removed`` whose state is deleted."""
        return {"added": [*self.added], "removed": [*self.removed], "deleted": [*self.deleted]}

    def ask(self) -> None:
        """Ask whether to delete the state of ``deleted``."""
        renamed = "A renamed computation begins without state. " if self.added else ""
        confirm(f"{renamed}Delete the state of {', '.join(self.deleted)} of topology {self.topology} for good?")


def replacement_of(running: catalog.TopologyRecord, new: specs.TopologySpec) -> Replacement:
    """What an update of ``running`` to ``new`` does."""
    if running.state not in LIVE_STATES:
        return Replacement(new.name)
    before, after = ({one.name: one for one in spec.computations} for spec in (running.spec, new))
    removed = [one for name, one in before.items() if name not in after]
    return Replacement(
        new.name,
        running.version,
        tuple(name for name in after if name not in before),
        tuple(one.name for one in removed),
        tuple(one.name for one in removed if one.state_type not in _NO_STATE),
    )


def refuse_other_name(running: catalog.TopologyRecord, code: str) -> None:
    """Refuse an update by the code of a topology named ``code``, if that is another one than ``running``.

    The code of a fork says its original's name. No other topology may have such code: masters and workers from before
    forks load code under the name that it says.

    Raises:
        RequestError: The names differ, and the topology is no fork.
    """
    name = running.spec.name
    if code == name or running.HasField("fork"):
        return
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"the code is that of topology {code!r}, and topology {name!r} is no fork: only a fork has another name than "
        "its code says",
        f"name the code of {name!r}, without --as",
        reason="NOT_A_FORK",
    )
