"""What compiled modules say to the compiler (docs/decisions/0019-compiled-core.md). Python ignores it."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(*_, **__):
        """As ``mypy_extensions`` has it, which a build has and a server need not have."""
        return lambda cls: cls
