"""Code packages: a fault is reported by name, and the next correct package still loads."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from random import Random
from typing import Final

from millwheel.sdk.errors import PackageError
from millwheel.sdk.loading import load_topology, unload_package
from millwheel.sdk.package import build_package
from tests.fuzz.odd import ODD_WORDS, damaged
from tests.fuzz.surface import Surface, Unclear
from tests.system.speaking import SOURCE

_ATTRIBUTES: Final = ("words", "", "Count", "no such", "__class__", "words.x", "a:b")
_LINES: Final = (
    "import nothing_of_this_name", "raise SystemExit(3)", "1 / 0", "words = 7", "def", "\0", "import sys; sys.exit()",
    "raise KeyboardInterrupt if False else ValueError", "from . import words", "import os.path.nothing",
    "words = mw.Topology('other')", "raise BaseExceptionGroup('x', [ValueError()])", "# -*- coding: nothing -*-",
)  # fmt: skip
_NAMES: Final = (*ODD_WORDS, "json.py", "os/__init__.py", "millwheel/x.py", "fuzzed_package.py/x", "a/")


class Packages(Surface):
    """A surface: each case is one code package, damaged or made to do harm."""

    name = "packages"

    async def open(self) -> None:
        source = self.place / "fuzzed_package.py"
        source.write_text(SOURCE)
        self._package = build_package(f"{source}:words")

    async def case(self, random: Random) -> str:
        """Load one package. Then a correct package with the same names must load its own code."""
        data, entry_point = self._data(random), f"fuzzed_package:{random.choice(_ATTRIBUTES[:1] * 5 + _ATTRIBUTES[1:])}"
        if random.random() < 0.05:
            entry_point = random.choice(ODD_WORDS)
        digest = hashlib.sha256(data).hexdigest()
        if random.random() < 0.05:
            digest = random.choice((digest[:-1], "", "../../x", self._package.digest))
        place = self.place / "packages"
        try:
            load_topology(digest, data, entry_point, place)
            status = "OK"
        except PackageError as error:
            if not str(error):
                raise Unclear("refused without a reason") from error
            status = "REFUSED"
        finally:
            unload_package(digest)
        outside = {path.name for path in self.place.iterdir()}
        if outside | {"packages"} != {"fuzzed_package.py", "packages"}:
            raise Unclear(f"files outside of the package's place: {outside}")
        if random.random() < 0.05:
            whole = self._package
            load_topology(whole.digest, whole.data, whole.entry_point, place)
            unload_package(whole.digest)
        shutil.rmtree(place, ignore_errors=True)
        return status

    def _data(self, random: Random) -> bytes:
        how = random.random()
        if how < 0.4:
            return damaged(random, self._package.data)
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
