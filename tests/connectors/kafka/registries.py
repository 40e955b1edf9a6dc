"""A door in front of the tests' schema registry: it asks for a password, counts, lies, hangs and closes."""

from __future__ import annotations

import itertools
import os
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

from deploy.local.child import free_ports
from millwheel.connectors.kafka import SchemaRegistry
from tests import components
from tests.patience import patience

_numbers = itertools.count()
USER, PASSWORD = "millwheel", "hush-hush"


def new_subject() -> str:
    """A subject that no other test has."""
    return f"subject-{os.getpid()}-{next(_numbers)}"


def direct() -> SchemaRegistry:
    """The registry, without the door."""
    return SchemaRegistry(components.schema_registry().url)


def asked(method: str, path: str, body: Any = None, head: Any = None) -> tuple[int, bytes]:
    """What the registry answers."""
    data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    request = Request(components.schema_registry().url + path, data, method=method)
    request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    for name, value in (head or {}).items():
        request.add_header(name, value)
    try:
        with urlopen(request, timeout=patience(20)) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


@dataclass
class Door:
    """A server that passes calls with the password on to the registry.

    ``answers``: what it says to the next calls instead, as status and body. None: it hangs.
    """

    port: int = field(default_factory=lambda: free_ports(1)[0])
    answers: list[tuple[int, bytes] | None] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """The method and path of each call."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def registry(self, folder: Path, password: str = PASSWORD) -> SchemaRegistry:
        """The registry as a worker knows it that shows this password."""
        path = folder / f"registry-{next(_numbers)}.properties"
        path.write_text(f"# of a test\nbasic.auth.user.info={USER}:{password}\n")
        return SchemaRegistry(self.url, settings=str(path))

    @contextmanager
    def open(self) -> Iterator[Door]:
        """Listen, at the same port each time."""
        components.schema_registry()  # it starts here, and not within the first call
        door, closing = self, threading.Event()
        expected = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                door.calls.append(f"{self.command} {self.path}")
                if door.answers:
                    answer = door.answers.pop(0)
                elif self.headers.get("Authorization") != expected:
                    answer = 401, b'{"error_code": 401, "message": "Unauthorized"}'
                else:
                    answer = asked(self.command, self.path, body or None)
                if answer is None:
                    closing.wait(patience(60))
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                with suppress(OSError):  # the caller has gone
                    self.wfile.write(answer[1])

            do_GET = do_POST = _serve

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            closing.set()
            server.shutdown()
            server.server_close()
            thread.join()
