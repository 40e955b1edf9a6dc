"""What the compiled build rests on, as far as it can be told without a compiler; `make test-compiled` does the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.build import choose

ROOT = Path(__file__).parents[2]


def test_the_python_tree_is_measured_by_whatever_is_started_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert choose(pure=True).value == 0
    code = "from importlib.util import find_spec; print(find_spec('millwheel').origin)"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert found.stdout.strip() == str(ROOT / "millwheel" / "__init__.py")


def test_what_is_compiled_is_there_and_defines_nothing_that_mypyc_cannot_compile() -> None:
    modules = re.findall(r'"(millwheel/[a-z_/]+\.py)"', (ROOT / "setup.py").read_text())
    assert "millwheel/worker/interval/core.py" in modules
    for module in modules:
        text = (ROOT / module).read_text()
        assert "msgspec.Struct" not in text, module
        assert ".deleter\n" not in text, module
