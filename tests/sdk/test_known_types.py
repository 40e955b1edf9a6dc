"""No thread decodes a value of a type at which msgspec still looks in another thread: the process would end."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.house.tree import ROOT
from tests.patience import patience

# msgspec looks at Outer, and then at Inner. While it evaluates what Inner states, it has no type of Outer's fields yet.
_PAUSED: Final = """
import threading, traceback, msgspec
from collections import deque
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.known_types import known
from millwheel.sdk.typeinfo import describe_type

begun, go_on = threading.Event(), threading.Event()

def paused():
    if any("msgspec" in frame.filename for frame in traceback.extract_stack()):  # others read what is stated, too
        begun.set()
        assert go_on.wait(LIMIT)
    return int

class Inner(msgspec.Struct):
    number: "paused()"

class Outer(msgspec.Struct):
    inner: Inner

def first():
    LOOK

def second():
    known(Outer)
    print(msgspec.json.decode(b'{"inner":{"number":7}}', type=Outer).inner.number)

threads = [threading.Thread(target=first), threading.Thread(target=second)]
threads[0].start()
assert begun.wait(LIMIT)
threads[1].start()
threads[1].join(0.3)  # so long it may take to crash
go_on.set()
for thread in threads:
    thread.join()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "look",
    [
        "known(Outer)",
        "describe_type(Outer)",
        "codec_for(Outer, 'a test').decode(b'\\x81\\xa5inner\\x81\\xa6number\\x07')",
        "codec_for(deque[Outer], 'a test').decode(b'\\x91\\x81\\xa5inner\\x81\\xa6number\\x07')",
    ],
)
def test_a_second_thread_waits_for_the_look_of_the_first(look: str) -> None:
    assert _run(_PAUSED.replace("LIMIT", str(patience(4))).replace("LOOK", look)) == "7\n"


# Threads decode them. If msgspec had not looked at them yet, it would evaluate what they state from here on.
_LOOKED_AT: Final = """
import importlib, msgspec, sys
for one in sys.argv[1:]:
    module, name = one.split(":")
    kind = getattr(importlib.import_module(module), name)
    kind.__annotations__ = dict.fromkeys(kind.__struct_fields__, "1 / 0")
    msgspec.json.Decoder(kind)
    print(name)
"""


@pytest.mark.timeout(60)
def test_types_that_threads_decode_are_known_after_imports() -> None:
    connectors = "millwheel.connectors"
    kinds = [
        f"{connectors}.files.progress:FilesProgress",
        f"{connectors}.kafka.progress:ShardProgress",
        f"{connectors}.kafka.registry:RegisteredSchema",
        f"{connectors}.kafka.registry:_Id",
        f"{connectors}.kafka.registry:_Version",
        f"{connectors}.cassandra.settings:_File",
    ]
    assert _run(_LOOKED_AT, *kinds).split() == [one.partition(":")[2] for one in kinds]


def _run(program: str, *arguments: str) -> str:
    """What a process of its own prints: here, other tests have used the types."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(20),
        check=False,
    )
    assert done.returncode == 0, f"it ended with {done.returncode}:\n{done.stderr}"
    return done.stdout
