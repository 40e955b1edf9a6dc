"""Settings of an injector, and the name of a batch (section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.client.injector.likelihood import any_timestamp_default
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.stalls import Explain

__all__ = ["BatchOf", "InjectorSettings"]


@dataclass(frozen=True, slots=True)
class InjectorSettings:
    """``patience``: seconds to wait for a cluster that cannot be reached, in opening, waking and finishing. Once it is
    open, an injector waits for workers without end, and goes by the routing that it knows while no master answers."""

    patience: float = 30.0
    check_types: bool = False
    """Have a worker check each record against the stream's declared type before it is accepted.

    It costs a call to a worker for each :meth:`Injector.send`, or for each thousand records of
    :meth:`Injector.send_many`. An injector with ``topology=`` checks by that topology's types, at no such cost."""
    strict_keys: bool = False
    """Refuse a record that any consumer cannot take, instead of one that no consumer takes: for a sender that fails as
    a whole and can name the record, such as a task of Spark."""
    any_timestamp: bool = field(default_factory=any_timestamp_default)
    """Take timestamps before 1980 or more than a year ahead, too. They are refused otherwise, for they are mostly
    written in another unit. The environment variable MILLWHEEL_ANY_TIMESTAMP=1 sets the default."""
    explain: Explain | None = None
    """Asked why a computation does not ACK; by default the owner of its interval is asked."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class BatchOf:
    """Batch number ``batch`` of ``query``: ids sent under it are unique within it (see CommitBatch)."""

    query: str
    batch: int
