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


# A look that does not end. The first one that waits for it gives it up.
_STUCK: Final = """
import threading, msgspec
from millwheel.sdk import known_types
from millwheel.sdk.known_types import known

begun, go_on = threading.Event(), threading.Event()

def stuck():
    begun.set()
    go_on.wait(LIMIT)
    return int

class Stuck(msgspec.Struct):
    number: "stuck()"

first = threading.Thread(target=known, args=(Stuck,))
first.start()
assert begun.wait(LIMIT)
"""

_OTHERS_GO_ON: Final = """
kinds = [msgspec.defstruct(f"Other{number}", [("number", int)]) for number in range(20)]
known_types.WAITS = 1
known(kinds[0])
known_types.WAITS = 1_000_000_000
for kind in kinds[1:]:
    known(kind)
print(first.is_alive())
go_on.set()
"""

_ONE_AT_A_TIME: Final = """
import time
inside, most = set(), []

def looked_at():
    known_types.WAITS = 1_000_000_000
    inside.add(threading.get_ident())
    most.append(len(inside))
    time.sleep(0.05)
    inside.remove(threading.get_ident())
    return int

kinds = [msgspec.defstruct(f"Other{number}", [("number", "looked_at()")], module=__name__) for number in range(4)]
known_types.WAITS = 5
others = [threading.Thread(target=known, args=(kind,)) for kind in kinds]
for other in others:
    other.start()
for other in others:
    other.join()
print(most, first.is_alive())
go_on.set()
"""


@pytest.mark.guarantee("G8", section="7.1")
@pytest.mark.timeout(60)
def test_a_look_that_never_ends_is_waited_for_once() -> None:
    """Regression: the code of one topology delayed each type of all others by 5 s, on the event loop, too."""
    assert _run((_STUCK + _OTHERS_GO_ON).replace("LIMIT", str(patience(4)))) == "True\n"


@pytest.mark.timeout(60)
def test_threads_that_give_up_a_look_do_not_look_at_once() -> None:
    """Regression: they had waited side by side, and then looked without a lock."""
    assert _run((_STUCK + _ONE_AT_A_TIME).replace("LIMIT", str(patience(4)))) == "[1, 1, 1, 1] True\n"


@pytest.mark.timeout(60)
def test_an_annotation_may_look_at_another_type() -> None:
    program = """
import msgspec
from millwheel.sdk.known_types import known

class Inner(msgspec.Struct):
    number: int

class Outer(msgspec.Struct):
    inner: "known(Inner)"

known(Outer)
print(msgspec.json.decode(b'{"inner":{"number":7}}', type=Outer).inner.number)
"""
    assert _run(program) == "7\n"


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
