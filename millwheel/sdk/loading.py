"""Loading code packages into this process.

Modules are known to Python by their names, one of a name per process. A package whose modules have names that
nobody else has is loaded under them. One that clashes, be it a version of a topology beside another or a
module of the same name by chance, is loaded apart: under names with a prefix of its own, and what its code imports by
the package's names is found there (:mod:`millwheel.sdk.apart`). So two packages never get each other's code.
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
import zipfile
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Final, Protocol

from millwheel.sdk.apart import ApartFinder
from millwheel.sdk.errors import PackageError, did_you_mean
from millwheel.sdk.topology import Topology

__all__ = ["MAX_PACKAGE_BYTES", "load_topology", "unload_package"]


class _Finder(Protocol):
    """Finds the modules of one package. ``prefix`` stands before their names in this process."""

    digest: str
    root: Path
    names: frozenset[str]
    prefix: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None: ...


class _PlainFinder(MetaPathFinder):
    """Finds the top-level modules of one package, and nothing else; Python finds what is below them by itself."""

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
"""What a package may hold, packed or unpacked: code, not data. It is kept in memory, and sent to each worker."""

_finders: dict[str, _Finder] = {}
"""The packages of this process, by digest."""
_lock = threading.RLock()
"""Held while packages are put in and taken out, not while their code is imported: that may take any time."""


def load_topology(digest: str, data: bytes, entry_point: str, directory: Path) -> Topology:
    """The topology at ``entry_point`` (``module:attribute``) of the package ``data``.

    The package is unpacked to ``directory/<digest>`` and imported from there, once; loading it again gives the
    same object. Several threads may load packages at once, each of them others. PackageError if the bytes do not have
    that digest, the code fails to import, it clashes with another module and cannot be loaded apart from it, or there
    is no topology at that place.
    """
    with _lock:
        fresh = digest not in _finders
        if fresh:
            actual = hashlib.sha256(data).hexdigest()
            if actual != digest:
                raise PackageError(f"package {_short(digest)} is damaged: its bytes have the digest {_short(actual)}")
            _install(digest, Path(directory).resolve() / digest, data)
        finder = _finders[digest]
    try:
        return _topology(finder, entry_point)
    except PackageError:
        with _lock:
            if fresh and _finders.get(digest) is finder:
                _remove(finder)
        raise


def unload_package(digest: str) -> None:
    """Forget the modules of a package that nothing here runs any more; their names are free again."""
    with _lock:
        if digest in _finders:
            _remove(_finders[digest])


def _short(digest: str) -> str:
    return digest[:12]


def _contents(digest: str, data: bytes) -> dict[PurePosixPath, bytes]:
    """The package's files. What others sent may be anything: PackageError, whatever is wrong with it."""
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
                # No more is read than the entry says that it holds.
                files[path] = archive.read(entry)
    except PackageError:
        raise
    except Exception as error:
        # The library raises a dozen kinds of errors, by what is damaged.
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PackageError(f"package {_short(digest)} is no zip file that can be read: {told}") from error
    return files


def _install(digest: str, root: Path, data: bytes) -> None:
    """Unpack, and have the modules found from now on."""
    files = _contents(digest, data)
    names = frozenset(path.parts[0].removesuffix(".py") for path in files)
    clash = _clash(names)
    finder: _Finder = _PlainFinder(digest, root, names) if clash is None else ApartFinder(digest, root, names, clash)
    _unpack(digest, root, files)
    importlib.invalidate_caches()
    _finders[digest] = finder
    sys.meta_path.insert(0, finder)


def _clash(names: frozenset[str]) -> str | None:
    """Who has one of these names already; None: nobody."""
    for name in sorted(names):
        if name in sys.stdlib_module_names:
            return f"Python has a module {name!r} of its own"
        for other in _finders.values():
            if name in other.names and not other.prefix:
                return f"package {_short(other.digest)} holds a module {name!r}, too"
        if name in sys.modules:
            place = getattr(sys.modules[name], "__file__", None) or "elsewhere"
            return f"this process imported a module {name!r} from {place}"
    return None


def _unpack(digest: str, root: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    """All or nothing: the directory appears by one rename. What was unpacked before counts only if it is whole."""
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
            if not _is_whole(root, files):  # else another process has unpacked the same bytes
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
    """Whether a package's files are there, unchanged; beside them Python keeps what it compiled."""
    try:
        return root.is_dir() and all((root / path).read_bytes() == content for path, content in files.items())
    except OSError:
        return False


def _topology(finder: _Finder, entry_point: str) -> Topology:
    module_name, _, attribute = entry_point.partition(":")
    where = f"package {_short(finder.digest)}"
    if module_name.partition(".")[0] not in finder.names:
        raise PackageError(f"{where} has no module {module_name!r}, of its entry point {entry_point!r}")
    try:
        module = importlib.import_module(finder.prefix + module_name)
    except (Exception, SystemExit) as error:
        raise PackageError(
            f"{where}: importing {module_name!r} failed with {type(error).__name__}: {error}"
            f"{_missing_module_hint(finder, error)}"
        ) from error
    namespace = getattr(module, "__dict__", {})
    found = namespace.get(attribute)
    if not isinstance(found, Topology):
        topologies = [name for name, value in namespace.items() if isinstance(value, Topology)]
        has = f"it has {', '.join(topologies)}" if topologies else "it has none"
        raise PackageError(
            f"{where}: {entry_point!r} is no millwheel.Topology: {has}{did_you_mean(attribute, topologies)}"
        )
    return found


def _missing_module_hint(finder: _Finder, error: BaseException) -> str:
    """What to do about a module that is neither in the package nor installed; empty for other errors."""
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
    """Forget a package, so that nothing of it, half imported perhaps, stays behind."""
    sys.meta_path.remove(finder)
    del _finders[finder.digest]
    tops = {finder.prefix.rstrip(".")} if finder.prefix else finder.names
    for name in list(sys.modules):
        if name.partition(".")[0] in tops:
            del sys.modules[name]
    for place in list(sys.path_importer_cache):
        if Path(place).is_relative_to(finder.root):
            del sys.path_importer_cache[place]
