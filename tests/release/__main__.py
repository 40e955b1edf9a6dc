"""``python -m tests.release``: compares what ``tools/dist.sh`` has built with its sources, and tries it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.house.tree import ROOT
from tests.release.bare import BareEnvironment
from tests.release.contents import check_metadata, check_same, check_source_distribution, check_wheel

__all__ = ["main"]

_DIST: Final = ROOT / "dist"
_WORK: Final = ROOT / "build" / "dist"


def main() -> int:
    """Check everything in ``dist/``; what does not hold is raised.

    Returns:
        0, the exit code.
    """
    for name in ("PYTHONPATH", "PYTHONHOME"):
        # What is imported in a bare environment is what was installed there.
        os.environ.pop(name, None)
    archive, pure, compiled = _only("*.tar.gz"), _only("*-py3-none-any.whl"), _only("*-linux_*.whl")
    check_source_distribution(archive)
    check_same(pure, _only(pure.name, _WORK / "checkout"))
    for wheel in (pure, compiled):
        check_wheel(wheel)
        check_metadata(wheel)
    print("dist: the files have what the checkout has, and the source distribution builds the same wheel")
    for wheel in (pure, compiled):
        _try(wheel, compiled=wheel == compiled)
        print(f"dist: {wheel.name}: installed and tried")
    return 0


def _try(wheel: Path, *, compiled: bool) -> None:
    place = _WORK / "bare"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    bare = BareEnvironment(place / "venv", wheel)
    bare.check_installed(compiled=compiled)
    bare.take_first_steps(place / "desk")


def _only(pattern: str, folder: Path = _DIST) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{folder} has {found} for {pattern}: run tools/dist.sh"
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
