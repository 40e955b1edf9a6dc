"""Loading code packages into this process.

Modules are known to Python by their names, one of a name per process. So of two packages that both hold a
module ``zeitgeist``, two versions of one topology perhaps, a process can load one; the other is refused,
never mixed with it. They run side by side in processes of their own.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from types import ModuleType

from millwheel.sdk.errors import PackageError, did_you_mean
from millwheel.sdk.topology import Topology

__all__ = ["load_topology"]


class _PackageFinder(MetaPathFinder):
    """Finds the top-level modules of one package, and nothing else; Python finds what is below them by itself."""

    def __init__(self, digest: str, root: Path, names: frozenset[str]) -> None:
        self.digest = digest
        self.root = root
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a top-level module of the package."""
        if path is None and fullname in self.names:
            return PathFinder.find_spec(fullname, [str(self.root)])
        return None


_finders: dict[str, _PackageFinder] = {}
"""The packages of this process, by digest."""
_lock = threading.RLock()


def load_topology(digest: str, data: bytes, entry_point: str, directory: Path) -> Topology:
    """The topology at ``entry_point`` (``module:attribute``) of the package ``data``.

    The package is unpacked to ``directory/<digest>`` and imported from there, once; loading it again gives the
    same object. PackageError if the bytes do not have that digest, the code fails to import, a module of the same
    name is already loaded from elsewhere, or there is no topology at that place.
    """
    with _lock:
        fresh = digest not in _finders
        if fresh:
            actual = hashlib.sha256(data).hexdigest()
            if actual != digest:
                raise PackageError(f"package {_short(digest)} is damaged: its bytes have the digest {_short(actual)}")
            _install(_PackageFinder(digest, Path(directory).resolve() / digest, _top_level_names(digest, data)), data)
        try:
            return _topology(_finders[digest], entry_point)
        except PackageError:
            if fresh:
                _remove(_finders[digest])
            raise


def _short(digest: str) -> str:
    return digest[:12]


def _top_level_names(digest: str, data: bytes) -> frozenset[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            paths = [PurePosixPath(name) for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise PackageError(f"package {_short(digest)} is no zip file: {error}") from error
    for path in paths:
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise PackageError(f"package {_short(digest)} holds {str(path)!r}, which lies outside of it")
    return frozenset(path.parts[0].removesuffix(".py") for path in paths)


def _install(finder: _PackageFinder, data: bytes) -> None:
    """Refuse clashes, unpack, and have the modules found from now on."""
    advice = "run it in a process of its own"
    for name in sorted(finder.names):
        for other in _finders.values():
            if name in other.names:
                raise PackageError(
                    f"package {_short(finder.digest)} cannot be loaded beside package {_short(other.digest)}: "
                    f"both hold a module {name!r}: {advice}"
                )
        if name in sys.modules:
            place = getattr(sys.modules[name], "__file__", None) or "elsewhere"
            raise PackageError(
                f"package {_short(finder.digest)} cannot be loaded: its module {name!r} has the name of one that this "
                f"process imported from {place}: {advice}, or rename it"
            )
    _unpack(finder.root, data)
    importlib.invalidate_caches()
    _finders[finder.digest] = finder
    sys.meta_path.insert(0, finder)


def _unpack(root: Path, data: bytes) -> None:
    """All or nothing: the directory appears by one rename."""
    if root.exists():
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root.parent))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(draft)
        try:
            draft.rename(root)
        except OSError:
            if not root.exists():  # else another process has unpacked the same bytes
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _topology(finder: _PackageFinder, entry_point: str) -> Topology:
    module_name, _, attribute = entry_point.partition(":")
    where = f"package {_short(finder.digest)}"
    if module_name.partition(".")[0] not in finder.names:
        raise PackageError(f"{where} has no module {module_name!r}, of its entry point {entry_point!r}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        hint = ": install it, or include it in the package" if isinstance(error, ModuleNotFoundError) else ""
        raise PackageError(
            f"{where}: importing {module_name!r} failed with {type(error).__name__}: {error}{hint}"
        ) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Topology):
        topologies = [name for name, value in vars(module).items() if isinstance(value, Topology)]
        has = f"it has {', '.join(topologies)}" if topologies else "it has none"
        raise PackageError(
            f"{where}: {entry_point!r} is no millwheel.Topology: {has}{did_you_mean(attribute, topologies)}"
        )
    return found


def _remove(finder: _PackageFinder) -> None:
    """Forget a package that turned out to be of no use, so that nothing half imported stays behind."""
    sys.meta_path.remove(finder)
    del _finders[finder.digest]
    for name in list(sys.modules):
        if name.partition(".")[0] in finder.names:
            del sys.modules[name]
