"""A process that is paused sees afterwards for how long."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from prometheus_client import CollectorRegistry

from millwheel.server.stall_watch import StallWatch
from tests.patience import patience

PROGRAM = """
import time
from millwheel.server.stall_watch import StallWatch
watch = StallWatch()
watch.start()
time.sleep(1.0)
print("ready", flush=True)
input()
time.sleep(1.0)
print(watch.longest(), flush=True)
"""
PAUSE_SECONDS = 3.0


def test_a_paused_process_knows_for_how_long() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        longest = float(process.stdout.readline())
        assert process.wait(patience(10)) == 0
    assert longest > PAUSE_SECONDS / 2


def test_the_metric_is_there_from_the_start() -> None:
    registry, watch = CollectorRegistry(), StallWatch()
    registry.register(watch)
    assert registry.get_sample_value("millwheel_stalled_seconds_total") == 0.0
