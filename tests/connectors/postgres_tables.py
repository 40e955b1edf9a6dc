"""Databases of a real PostgreSQL for tests, each with tables of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg

from deploy.local.postgres import PostgresServer
from tests import components

_numbers = count(1)


class Database:
    """A new database. ``run`` runs a statement in a session of its own, and commits it."""

    def __init__(self, encoding: str = "UTF8", server: PostgresServer | None = None) -> None:
        """``server``: one of the test itself, which runs."""
        self.server = server or components.postgres()
        self.server.start()
        self.name = f"test{next(_numbers)}"
        with psycopg.connect(self.server.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.name} ENCODING '{encoding}' TEMPLATE template0")

    @property
    def conninfo(self) -> str:
        return self.server.conninfo.replace("dbname=postgres", f"dbname={self.name}")

    @contextmanager
    def session(self, *, autocommit: bool = True) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.conninfo, autocommit=autocommit) as connection:
            yield connection

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement gives. An empty list if it gives none."""
        with self.session() as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def guest(self, password: str) -> Iterator[str]:
        """The connection of a role that is asked for its password, and may read changes."""
        role, access = f"guest_{self.name}", self.server.folder / "data" / "pg_hba.conf"
        former = access.read_text()
        self.run(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{password}'")
        try:
            access.write_text(f"local all {role} scram-sha-256\n{former}")
            self.run("SELECT pg_reload_conf()")
            yield self.conninfo.replace("user=postgres", f"user={role}")
        finally:
            access.write_text(former)
            self.run("SELECT pg_reload_conf()")
            self.run(f"DROP ROLE {role}")

    def remove(self) -> None:
        """Drop the database with its slots."""
        self.server.start()
        with psycopg.connect(self.server.conninfo, autocommit=True) as connection:
            slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [self.name])
            for name, _ in connection.execute(slots, [self.name]).fetchall():
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
