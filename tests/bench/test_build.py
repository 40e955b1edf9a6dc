"""What the compiled build rests on, as far as it can be seen without a compiler; `make test-compiled` does the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.build import choose

ROOT = Path(__file__).parents[2]


def test_the_python_tree_is_measured_for_any_kind_of_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert choose(pure=True).value == 0
    code = "from importlib.util import find_spec; print(find_spec('millwheel').origin)"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert found.stdout.strip() == str(ROOT / "millwheel" / "__init__.py")


def _compiled() -> dict[str, str]:
    """The modules that setup.py compiles, with their paths."""
    modules = re.findall(r'"(millwheel/[a-z_/]+\.py)"', (ROOT / "setup.py").read_text())
    return {module: (ROOT / module).read_text() for module in modules}


def _classes(text: str) -> dict[str, set[str]]:
    """The classes of a module, with the names of their bases."""
    found = re.findall(r"^class (\w+)(?:\(([^)]*)\))?:", text, re.MULTILINE)
    return {name: set(re.findall(r"\w+", bases)) for name, bases in found}


def test_what_is_compiled_exists_and_mypyc_can_compile_all_of_it() -> None:
    modules = _compiled()
    assert "millwheel/worker/interval/core.py" in modules
    for module, text in modules.items():
        assert "msgspec.Struct" not in text, module
        assert ".deleter\n" not in text, module


def test_no_class_that_stays_python_inherits_from_a_compiled_one() -> None:
    """Regression: the core of a removed computation did. It could be imported, but not created."""
    modules = _compiled()
    compiled = {name for text in modules.values() for name in _classes(text)}
    assert {"IntervalCore", "DrainingCore", "Context", "KeyCell"} <= compiled
    paths = [
        path for place in ("model", "sdk", "worker") for path in (ROOT / "millwheel" / place).resolve().rglob("*.py")
    ]
    assert len(paths) > 100
    for path in paths:
        text = path.read_text()
        if text not in modules.values():
            for name, bases in _classes(text).items():
                assert not bases & compiled, f"{name} of {path}: name its module in setup.py, too"
