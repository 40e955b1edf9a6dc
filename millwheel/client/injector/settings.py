"""Settings of an injector (section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.client.injector.likelihood import any_timestamp_default
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.stalls import Explain
from millwheel.sdk.errors import UsageError

__all__ = ["InjectorSettings"]


@dataclass(frozen=True, slots=True)
class InjectorSettings:
    """Settings of an injector.

    ``patience``: seconds to wait for an unreachable cluster while the injector opens, wakes or finishes. An open
    injector waits for workers without limit. While no master answers, it uses the routing that it knows."""

    patience: float = 30.0
    check_types: bool = True
    """Refuse a record that does not have the stream's declared type, before it is accepted.

    The cluster sends the type as a schema, so the check needs no topology's code and no request. Streams of protobuf
    messages and streams with a codec are not checked. The check does not run the type's own code, such as
    ``__post_init__``. With ``topology=``, that object's types and codecs also check the records."""
    check_at_worker: bool = False
    """Also let a worker, which has the topologies' code, decode each record before it is accepted.

    This costs a request to a worker for each :meth:`Injector.send`, or for each thousand records of
    :meth:`Injector.send_many`. While no worker answers, records are accepted without this check."""
    strict_keys: bool = False
    """Refuse a record that any consumer cannot take. By default, a record is refused if no consumer takes it.

    This suits a sender that fails as a whole and can name the record, such as a Spark task."""
    any_timestamp: bool = field(default_factory=any_timestamp_default)
    """Also accept timestamps before 1980 or more than a year ahead. By default they are refused, because they are
    mostly in another unit. The environment variable MILLWHEEL_ANY_TIMESTAMP=1 sets the default."""
    extra_columns: frozenset[str] = frozenset()
    """Columns of tables that may be no fields of the stream's type. By default the log warns of such a column, as it
    may be a typing error. The column of ids never causes a warning."""
    explain: Explain | None = None
    """Returns why a computation does not ACK. By default the owner of its interval says why."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raises UsageError if ``extra_columns`` is a text: its letters would be the columns."""
        given: object = self.extra_columns
        if isinstance(given, str):
            raise UsageError(f"extra_columns is a set of names: write frozenset({{{given!r}}})")
