"""Loads code packages into this process.

Python identifies a module by its name, and a process has at most one module of each name. If no other code uses the
names of a package's modules, they keep these names. If a name clashes, the package is loaded under a prefix, and its
own imports of these names find the prefixed modules (:mod:`millwheel.sdk.apart`). Names clash between two versions of a
topology, or by chance. In both cases, no package imports code of another package.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import shutil
import sys
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Final, Protocol

from millwheel.sdk.apart import ApartFinder
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import PackageError, did_you_mean
from millwheel.sdk.topology import TopologyGraph

__all__ = ["MAX_PACKAGE_BYTES", "load_topology", "unload_package"]


class _Finder(Protocol):
    """Finds the modules of one package. Their names in this process begin with ``prefix``."""

    digest: str
    root: Path
    names: frozenset[str]
    prefix: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None: ...


class _PlainFinder(MetaPathFinder):
    """Finds the top-level modules of one package, and no others. Python itself finds their submodules."""

    prefix = ""

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


MAX_PACKAGE_BYTES: Final = 64 << 20
"""The most bytes of a package, packed or unpacked. A package is for code, not for data.

A package is kept in memory and sent to each worker.
"""

finders: dict[str, _Finder] = {}
"""The packages that this process has loaded, by digest."""
_lock = threading.RLock()
"""Held while a package is added or removed.

It is not held while a package's code is imported, which may take any time.
"""


def load_topology(digest: str, data: bytes, entry_point: str, directory: Path) -> TopologyGraph:
    """Load a package, and return the topology at its entry point.

    The package is unpacked to ``directory/<digest>`` and imported from there once. Loading it again returns the same
    object. Several threads may load different packages at the same time.

    Args:
        digest: The SHA-256 digest of ``data``, in lower-case hex.
        data: The package, a zip file.
        entry_point: ``module:attribute`` of the topology.
        directory: Where packages are unpacked.

    Raises:
        PackageError: The digest of ``data`` differs, or its code cannot be imported. Or it clashes with another module
            and cannot be loaded under a prefix. Or the entry point is no topology.
    """
    with _lock:
        fresh = digest not in finders
        if fresh:
            actual = hashlib.sha256(data).hexdigest()
            if actual != digest:
                raise PackageError(f"package {_short(digest)} is damaged: its bytes have the digest {_short(actual)}")
            _install(digest, Path(directory).resolve() / digest, data)
        finder = finders[digest]
    try:
        return _topology(finder, entry_point)
    except PackageError:
        with _lock:
            if fresh and finders.get(digest) is finder:
                _remove(finder)
        raise


def unload_package(digest: str) -> None:
    """Remove the modules of a package that this process no longer uses. Their names are free afterwards."""
    with _lock:
        if digest in finders:
            _remove(finders[digest])


def _short(digest: str) -> str:
    return digest[:12]


def _contents(digest: str, data: bytes) -> dict[PurePosixPath, bytes]:
    """The files of a package. The bytes come from outside, so every defect is a PackageError."""
    files: dict[PurePosixPath, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if sum(entry.file_size for entry in entries) > MAX_PACKAGE_BYTES:
                raise PackageError(f"package {_short(digest)} unpacks to more than {MAX_PACKAGE_BYTES:,} bytes")
            for entry in entries:
                path = PurePosixPath(entry.filename)
                if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in entry.filename:
                    raise PackageError(f"package {_short(digest)} holds {str(path)!r}, which lies outside of it")
                # This reads at most the size that the entry states.
                files[path] = archive.read(entry)
    except PackageError:
        raise
    except Exception as error:
        # The library raises many kinds of errors, depending on the damage.
        raise PackageError(
            f"package {_short(digest)} is no zip file that can be read: {error_message(error)}"
        ) from error
    return files


def _install(digest: str, root: Path, data: bytes) -> None:
    """Unpack a package, and make its modules importable."""
    files = _contents(digest, data)
    names = frozenset(path.parts[0].removesuffix(".py") for path in files)
    clash = _clash(names)
    finder: _Finder = _PlainFinder(digest, root, names) if clash is None else ApartFinder(digest, root, names, clash)
    _unpack(digest, root, files)
    importlib.invalidate_caches()
    finders[digest] = finder
    sys.meta_path.insert(0, finder)


def _clash(names: frozenset[str]) -> str | None:
    """What already uses one of these module names; None if nothing does."""
    for name in sorted(names):
        if name in sys.stdlib_module_names:
            return f"Python has a module {name!r} of its own"
        for other in finders.values():
            if name in other.names and not other.prefix:
                return f"package {_short(other.digest)} holds a module {name!r}, too"
        if name in sys.modules:
            place = getattr(sys.modules[name], "__file__", None) or "elsewhere"
            return f"this process imported a module {name!r} from {place}"
    return None


def _unpack(digest: str, root: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    """Unpack the files. A rename at the end makes the directory appear with all files or not at all.

    An existing directory is used only if its files are complete and unchanged.
    """
    if _is_whole(root, files):
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root.parent))
    try:
        for path, content in files.items():
            _write(digest, draft / path, content)
        try:
            draft.rename(root)
        except OSError:
            if not _is_whole(root, files):  # otherwise another process unpacked the same bytes
                root.rename(draft / ".damaged")
                draft.rename(root)
                shutil.rmtree(root / ".damaged", ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(digest: str, place: Path, content: bytes) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    except (ValueError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise PackageError(f"package {_short(digest)} holds a file that cannot be made: {error}") from error
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise
        raise PackageError(f"package {_short(digest)} holds a file that cannot be made: {error}") from error


def _is_whole(root: Path, files: Mapping[PurePosixPath, bytes]) -> bool:
    """Whether all files of a package are there and unchanged. Python may have added compiled files."""
    try:
        return root.is_dir() and all((root / path).read_bytes() == content for path, content in files.items())
    except OSError:
        return False


def _topology(finder: _Finder, entry_point: str) -> TopologyGraph:
    module_name, _, attribute = entry_point.partition(":")
    where = f"package {_short(finder.digest)}"
    if module_name.partition(".")[0] not in finder.names:
        raise PackageError(f"{where} has no module {module_name!r}, of its entry point {entry_point!r}")
    try:
        module = importlib.import_module(finder.prefix + module_name)
    except (Exception, SystemExit) as error:
        raise PackageError(
            f"{where}: importing {module_name!r} failed with {error_message(error)}{_raised_at(finder, error)}"
            f"{_missing_module_hint(finder, error)}"
        ) from error
    namespace = getattr(module, "__dict__", {})
    found = namespace.get(attribute)
    if not isinstance(found, TopologyGraph):
        topologies = [name for name, value in namespace.items() if isinstance(value, TopologyGraph)]
        has = f"it has {', '.join(topologies)}" if topologies else "it has none"
        raise PackageError(
            f"{where}: {entry_point!r} is no millwheel.Topology: {has}{did_you_mean(attribute, topologies)}"
        )
    return found


def _raised_at(finder: _Finder, error: BaseException) -> str:
    """The last line of the package's own files that led to an error; empty if there is none."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module, code = str(frame.f_globals.get("__name__", "")).removeprefix(finder.prefix), frame.f_code
        if module.partition(".")[0] in finder.names:
            init = "/__init__" if code.co_filename.endswith("__init__.py") else ""
            where = "" if code.co_name == "<module>" else f", in {code.co_name}"
            found = f" ({module.replace('.', '/')}{init}.py, line {line}{where})"
    return found


def _missing_module_hint(finder: _Finder, error: BaseException) -> str:
    """A remedy for a module that is neither in the package nor installed; empty for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    name = error.name.removeprefix(finder.prefix)
    top = name.partition(".")[0]
    if top in finder.names:
        return f". The package holds {top!r}, and no module {name!r} in it"
    return (
        f". The package holds the topology's own package or file, and no module {top!r}. If {top!r} is yours, package "
        f"it too: submit with `--include {top}` or `--include path/to/{top}.py`. If it is a library, install it where "
        "the workers run"
    )


def _remove(finder: _Finder) -> None:
    """Remove a package and all its modules, which may be only partly imported."""
    sys.meta_path.remove(finder)
    del finders[finder.digest]
    tops = {finder.prefix.rstrip(".")} if finder.prefix else finder.names
    for name in list(sys.modules):
        if name.partition(".")[0] in tops:
            del sys.modules[name]
    for place in list(sys.path_importer_cache):
        if Path(place).is_relative_to(finder.root):
            del sys.path_importer_cache[place]
