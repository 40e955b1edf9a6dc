"""Loads a code package under a name prefix, so that its modules do not collide with others of the same names.

The package's code needs no change. Its statement ``import shop.parts`` finds ``millwheel_<digest>.shop.parts``. Modules
outside the package are found as usual.

Code that passes module names to other code would bypass this prefix. ``importlib.import_module`` is therefore replaced
for the package. A package that imports a pickling module is refused, because pickling stores module names.
"""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["ApartFinder", "own_name"]

_PREFIX: Final = re.compile(r"millwheel_[0-9a-f]{16}\.")
_BY_NAME: Final = frozenset({"pickle", "_pickle", "cloudpickle", "dill", "shelve", "joblib", "marshal"})
"""Modules that store module names, or send them to other processes."""


def own_name(module: str) -> str:
    """A module's name within its package, without the prefix that it may be loaded under."""
    return _PREFIX.sub("", module, count=1)


class _Loader(SourceFileLoader):
    """Runs a module with the package's own ``__import__``."""

    def __init__(self, fullname: str, path: str, namespace: Mapping[str, Any]) -> None:
        super().__init__(fullname, path)
        self._namespace = namespace

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._namespace
        super().exec_module(module)


class _Importlib(ModuleType):
    """``importlib`` as the package's code sees it."""

    def __init__(self, finder: ApartFinder) -> None:
        super().__init__("importlib")
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib, name)

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """As ``importlib.import_module``, but names of the package's modules get the prefix."""
        return importlib.import_module(self._finder.placed(name), package)


class ApartFinder(MetaPathFinder):
    """Finds the modules of one package under its prefix, and no other modules."""

    def __init__(self, digest: str, root: Path, names: frozenset[str], clash: str) -> None:
        """``clash``: why the package needs a prefix, for the error message of a refused import."""
        self.digest = digest
        self.root = root
        self.names = names
        self.prefix = f"millwheel_{digest[:16]}."
        self._clash = clash
        self._importlib = _Importlib(self)
        self._namespace = {**vars(builtins), "__import__": self._import}

    def placed(self, name: str) -> str:
        """The name of a module in this process: with the prefix, if the package contains the module."""
        return self.prefix + name if name.partition(".")[0] in self.names else name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the package, or of the empty parent package that the prefix names."""
        if fullname == self.prefix[:-1]:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(self.root)]
            return spec
        if not fullname.startswith(self.prefix):
            return None
        spec_found = PathFinder.find_spec(fullname, path)
        if spec_found is not None and type(spec_found.loader) is SourceFileLoader:
            spec_found.loader = _Loader(spec_found.loader.name, spec_found.loader.path, self._namespace)
        return spec_found

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The implementation of the package's ``import`` statements."""
        top = name.partition(".")[0]
        if level == 0 and top in self.names:
            found = builtins.__import__(self.prefix + name, globals, locals, fromlist or (), 0)
            return found if fromlist else sys.modules[self.prefix + top]
        if level == 0 and top in _BY_NAME:
            raise ImportError(
                f"{self._clash}, so this package is loaded under other names, which {top!r} would store: "
                "rename its modules, or encode by other means"
            )
        found = builtins.__import__(name, globals, locals, fromlist or (), level)
        whole = level == 0 and (name == "importlib" or (top == "importlib" and not fromlist))
        return self._importlib if whole else found
