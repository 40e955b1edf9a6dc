"""Tables need an extra, and nothing else does."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from millwheel.sdk.errors import UsageError
from tests.patience import patience


def test_the_error_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "millwheel.client.arrow", raising=False)
    with pytest.raises(UsageError, match="install MillWheel with the extra arrow"):
        importlib.import_module("millwheel.client.arrow")


def test_only_tables_load_pyarrow() -> None:
    program = "import sys, millwheel.client.kept_log, millwheel.client.state_pages; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=patience(20))
