"""What pyproject.toml cannot say: with MILLWHEEL_COMPILE=1 mypyc compiles the hot modules.

Why, and what it is worth: docs/decisions/0019-compiled-core.md.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from setuptools import Extension, setup

# What takes part in every record, and defines no msgspec.Struct: mypyc cannot compile those. The Python tree is the
# reference, on which all tests, the simulator and the mutations run. Measure a module before and after adding it.
_MODULES: Final = [
    "millwheel/model/watermarks.py",
    "millwheel/sdk/context.py",
    "millwheel/sdk/context_timers.py",
    "millwheel/sdk/scope.py",
    "millwheel/worker/interval/blocked_key_table.py",
    "millwheel/worker/interval/cache/cells.py",
    "millwheel/worker/interval/clocks.py",
    "millwheel/worker/interval/commits/commits.py",
    "millwheel/worker/interval/core.py",
    "millwheel/worker/interval/cache/eviction.py",
    "millwheel/worker/interval/hooks/firing.py",
    "millwheel/worker/interval/hooks/holding_records.py",
    "millwheel/worker/interval/intake.py",
    "millwheel/worker/interval/receiver.py",
    "millwheel/worker/interval/key_bounds.py",
    "millwheel/worker/interval/draining.py",
    "millwheel/worker/interval/outbox/outbox.py",
    "millwheel/worker/interval/pending.py",
    "millwheel/worker/interval/hooks/runner.py",
    "millwheel/worker/interval/hooks/scheduler.py",
    "millwheel/worker/interval/hooks/traced_hooks.py",
    "millwheel/worker/interval/commits/sealing.py",
    "millwheel/worker/interval/commits/traced_sealing.py",
    "millwheel/worker/interval/commits/timer_changes.py",
    "millwheel/worker/interval/pump.py",
    "millwheel/worker/interval/setup.py",
    "millwheel/worker/interval/state.py",
    "millwheel/worker/interval/timers.py",
    "millwheel/worker/interval/commits/weak_commits.py",
    "millwheel/worker/journal.py",
    "millwheel/worker/journal_base.py",
    "millwheel/worker/log/core.py",
    "millwheel/worker/log/pump.py",
    "millwheel/worker/owner.py",
]

# The links to the role folders, where mypyc finds the modules above. A source distribution has no links.
_ROLES: Final = ["authority", "injectors", "master", "worker"]

_COMPILER: Final = ["mypy>=2.4,<3"]

# Where pip builds a wheel there are no dependencies; types go without those that we do not ask for here.
_TYPES: Final = ["msgspec>=0.20", "types-protobuf>=6"]

# None of the project's own settings: they ask for more than can be stated there. Modules that are not compiled are
# followed for their types, and not checked. Without the types of gRPC, the overloads of its stubs are all the same.
_OPTIONS: Final = [
    "--config-file=",
    "--cache-dir=/dev/null",
    "--explicit-package-bases",
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--disable-error-code=overload-cannot-match",
]

# What this file is run for beside building: to ask what a build needs, for metadata, and for an editable installation.
# That stays Python; compiled, it would have its modules among the sources.
_NOT_A_BUILD: Final = {"egg_info", "dist_info", "editable_wheel"}

_ASKED: Final = os.environ.get("MILLWHEEL_COMPILE") == "1"


def _extensions() -> list[Extension]:
    if not _ASKED or _NOT_A_BUILD.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    for role in _ROLES:
        link = Path("millwheel", role)
        if not link.exists():
            link.symlink_to(Path("..", role), target_is_directory=True)
    return mypycify([*_OPTIONS, *_MODULES], opt_level="2", target_dir="build/mypyc")


setup(ext_modules=_extensions(), setup_requires=[*_COMPILER, *_TYPES] if _ASKED else [])
