"""Code packages: a fault is reported by name, and the next correct package still loads."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from pathlib import Path
from random import Random
from typing import Final

from millwheel.sdk.errors import PackageError
from millwheel.sdk.loading import load_topology, unload_package
from millwheel.sdk.package import CodePackage, build_package
from tests.fuzz.cases import LIMIT, Unclear, run
from tests.fuzz.odd import ODD_WORDS, damaged
from tests.system.speaking import SOURCE

_ATTRIBUTES: Final = ("words", "", "Count", "no such", "__class__", "words.x", "a:b")
_LINES: Final = (
    "import nothing_of_this_name", "raise SystemExit(3)", "1 / 0", "words = 7", "def", "\0", "import sys; sys.exit()",
    "raise KeyboardInterrupt if False else ValueError", "from . import words", "import os.path.nothing",
    "words = mw.Topology('other')", "raise BaseExceptionGroup('x', [ValueError()])", "# -*- coding: nothing -*-",
)  # fmt: skip
_NAMES: Final = (*ODD_WORDS, "json.py", "os/__init__.py", "millwheel/x.py", "fuzzed_package.py/x", "a/")


@LIMIT
async def test_a_bad_package_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    source = tmp_path / "fuzzed_package.py"
    source.write_text(SOURCE)
    package = build_package(f"{source}:words")

    async def case(random: Random) -> str:
        return _load(random, package, tmp_path)

    await run("packages", case, few=150, percent=4)


def _load(random: Random, package: CodePackage, place: Path) -> str:
    """Load a bad package. Then the correct package with the same names must load its own code."""
    data = _data(random, package)
    entry_point = f"fuzzed_package:{random.choice(_ATTRIBUTES[:1] * 5 + _ATTRIBUTES[1:])}"
    if random.random() < 0.05:
        entry_point = random.choice(ODD_WORDS)
    digest = hashlib.sha256(data).hexdigest()
    if random.random() < 0.05:
        digest = random.choice((digest[:-1], "", "../../x", package.digest))
    folder = place / "packages"
    try:
        load_topology(digest, data, entry_point, folder)
        status = "OK"
    except PackageError as error:
        if not str(error):
            raise Unclear("refused without a reason") from error
        status = "REFUSED"
    finally:
        unload_package(digest)
    outside = {path.name for path in place.iterdir()} - {"fuzzed_package.py", "packages"}
    if outside:
        raise Unclear(f"files outside of the package's place: {outside}")
    if random.random() < 0.05:
        load_topology(package.digest, package.data, package.entry_point, folder)
        unload_package(package.digest)
    shutil.rmtree(folder, ignore_errors=True)
    return status


def _data(random: Random, package: CodePackage) -> bytes:
    how = random.random()
    if how < 0.4:
        return damaged(random, package.data)
    if how < 0.45:
        return random.randbytes(random.randrange(300))
    buffer = io.BytesIO()
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(buffer, "w", random.choice(methods)) as archive:
        source = SOURCE.splitlines()
        if random.random() < 0.8:
            source.insert(random.randrange(len(source)), random.choice(_LINES))
        archive.writestr("fuzzed_package.py", "\n".join(source))
        for name in random.sample(_NAMES, random.randrange(3)):
            if name:
                archive.writestr(zipfile.ZipInfo(name[:60_000]), random.randbytes(random.randrange(50)))
    whole = buffer.getvalue()
    return damaged(random, whole) if random.random() < 0.3 else whole
