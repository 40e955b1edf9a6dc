"""Connections to PostgreSQL by psycopg, with limits for everything that could wait for ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millwheel.errors import MillwheelError
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresError", "connecting", "opened", "psycopg_module", "refuse_password"]

_PASSWORD: Final = re.compile(r"\b(ssl)?password\s*=|://[^/@\s]*:[^/@\s]*@", re.IGNORECASE)
_LIBPQ: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "40000",
}
"""How long this side waits for a server that does not answer: seconds, and milliseconds in the last line."""
_SERVER: Final = {"tcp_keepalives_idle": "20", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4"}
"""How long the server keeps a session whose client does not answer. Its locks end with it."""
_WRITES: Final = {"lock_timeout": "20s", "statement_timeout": "50s", "idle_in_transaction_session_timeout": "60s"}
"""The last one ends the transaction of a process that is paused, so that its successor gets the lock. The others are
shorter than the time limit of a call, which is 60 seconds."""
_SET: Final = """SELECT set_config(name, value, false) FROM pg_settings
JOIN unnest(%s::text[], %s::text[]) AS wanted (name, value) USING (name) WHERE setting IN ('0', '')"""
"""Set what is not set for the role, the database or the connection."""


class PostgresError(MillwheelError):
    """The database cannot give what a source needs of it. The message says what to do."""


def psycopg_module() -> Any:
    """The driver.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            f"PostgreSQL needs psycopg, of the extra 'postgres': where the workers run, pip install '.[postgres]' "
            f"({error})"
        ) from None
    return psycopg


def refuse_password(conninfo: str) -> str:
    """``conninfo``, if it has no password: it is a part of the program, which is stored and shown.

    Raises:
        UsageError: It has one.
    """
    if _PASSWORD.search(conninfo):
        raise UsageError(
            "a conninfo with a password would be stored with the program: name a service (service=shop), and keep the "
            "password where the workers run, in their PGPASSFILE or PGPASSWORD"
        )
    return conninfo


def connecting(conninfo: str = "") -> Callable[[], psycopg.Connection[Any]]:
    """What opens connections to PostgreSQL, for ``connectors.database``. It is called in a worker.

    libpq finds there what ``conninfo`` does not say: in a service file, in ``PGPASSFILE``, and in variables such as
    ``PGHOST``. Limits that are set nowhere are set for the session. So a process that is paused within a transaction
    holds its locks for one minute, and a call ends before its time limit.

    For example::

        insert = "INSERT INTO totals (item, cents) VALUES (%(item)s, %(cents)s)"
        totals.to("totals-table", connectors.database(postgres.connecting("service=shop"), insert))

    Args:
        conninfo: As libpq has it, such as ``service=shop`` or ``postgresql://db.example/shop``. Without a password.

    Returns:
        A function that returns a connection of psycopg, which has transactions.

    Raises:
        UsageError: There is a password in it.
    """
    return _Connecting(refuse_password(conninfo))


@dataclass(frozen=True, slots=True)
class _Connecting:
    """What :func:`connecting` returns. Equal ones connect to the same."""

    conninfo: str

    def __call__(self) -> psycopg.Connection[Any]:
        connection = opened(self.conninfo, _WRITES, autocommit=False)
        connection.commit()
        return connection


def opened(conninfo: str, limits: dict[str, str], *, autocommit: bool) -> psycopg.Connection[Any]:
    """Open a connection. Of the limits, those are set that are set nowhere and that the server knows."""
    module = psycopg_module()
    given = module.conninfo.conninfo_to_dict(conninfo)
    connection: psycopg.Connection[Any] = module.connect(
        conninfo, autocommit=autocommit, **{name: value for name, value in _LIBPQ.items() if name not in given}
    )
    try:
        limits = {**_SERVER, **limits}
        connection.execute(_SET, (list(limits), list(limits.values())))
    except BaseException:
        connection.close()
        raise
    return connection
