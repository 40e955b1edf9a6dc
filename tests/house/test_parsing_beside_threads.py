"""A failure can be shown: pytest parses sources while other threads log errors."""

from __future__ import annotations

import ast
import threading
import time
import traceback
from pathlib import Path

import pytest


class Yielding:
    """In a cycle of garbage, so that it ends in the middle of what makes many objects, and lets others run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.mark.timeout(60)
def test_a_source_is_parsed_while_a_thread_formats_tracebacks() -> None:
    ended = threading.Event()

    def format_tracebacks() -> None:
        while not ended.is_set():
            try:
                _ = (1 + ended) * 2  # type: ignore[operator]  # it raises, in a part of its line
            except TypeError:
                traceback.format_exc()

    other = threading.Thread(target=format_tracebacks)
    other.start()
    try:
        source = Path(ast.__file__).read_text()
        for _ in range(10):
            for _ in range(50):
                Yielding()
            ast.parse(source)
    finally:
        ended.set()
        other.join()
