"""Code packages: a topology's code in one zip file, which is identified by its digest (design of section 7.1).

A package contains the topology's whole top-level package or its single file, and the modules in ``include``. The build
imports no code. Equal code gives equal bytes on every machine. Other imported modules must be installed on the workers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.errors import PackageError
from millwheel.sdk.loading import MAX_PACKAGE_BYTES, load_topology

__all__ = ["MAX_PACKAGE_BYTES", "CodePackage", "build_package", "load_topology"]

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_SKIPPED: Final = re.compile(r"\..*|__pycache__|.*\.py[co]|.*\.egg-info")


@dataclass(frozen=True, slots=True)
class CodePackage:
    """The bytes of a package, and the place of its topology."""

    data: bytes
    digest: str
    """The SHA-256 of the bytes, in lower-case hex."""
    entry_point: str
    """The place of the topology: ``module:attribute``."""

    def reference(self) -> topology_pb2.CodeReference:
        """The reference to the package in a topology's spec."""
        return topology_pb2.CodeReference(digest=self.digest, entry_point=self.entry_point)


def build_package(target: str, *, include: Iterable[str] = ()) -> CodePackage:
    """Package the code of a topology: its whole top-level package or, if it is in no package, its file.

    Args:
        target: ``package.module:attribute``, or ``path/to/file.py:attribute``.
        include: Further top-level modules or packages, by name or path.

    Raises:
        PackageError: Code cannot be found, is larger than 64 MiB, or would hide a module of Python.
    """
    place, separator, attribute = target.rpartition(":")
    if not separator or not place or not attribute.isidentifier():
        raise PackageError(f"{target!r} names no topology: write package.module:attribute or path/to/file.py:attribute")
    root, module = _locate(place)
    roots = [root, *(_locate(extra)[0] for extra in include)]
    files = dict(_files(roots))
    path = module.replace(".", "/")
    if f"{path}.py" not in files and f"{path}/__init__.py" not in files:
        raise PackageError(f"module {module!r} cannot be found: there is no {path}.py in {root.parent}")
    data = _zip(files)
    return CodePackage(data, hashlib.sha256(data).hexdigest(), f"{module}:{attribute}")


# Finding code.


def _locate(place: str) -> tuple[Path, str]:
    """The top-level package or file of a module or path, and the module's dotted name."""
    path = Path(place)
    if place.endswith(".py") or len(path.parts) > 1:
        return _locate_file(path, place)
    top = place.partition(".")[0]
    spec = _find(top)
    if spec is None:
        raise PackageError(f"module {place!r} cannot be found: run this where it can be imported, or name its file")
    locations = list(spec.submodule_search_locations or ())
    if len(locations) > 1:
        raise PackageError(
            f"package {top!r} lies in {len(locations)} directories: give it an __init__.py in one of them"
        )
    found = Path(locations[0] if locations else spec.origin or "")
    if not found.exists() or (not locations and found.suffix != ".py"):
        raise PackageError(f"module {place!r} is not made of Python files ({spec.origin}): only those can be packaged")
    return _admit(found, top), place


def _find(top: str) -> ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    return spec or PathFinder.find_spec(top, [str(Path.cwd())])


def _locate_file(path: Path, place: str) -> tuple[Path, str]:
    path = path.resolve()
    if not path.exists():
        raise PackageError(f"there is no file {place!r}")
    parts = [] if path.name == "__init__.py" else [path.stem]
    root = path.parent if path.name == "__init__.py" else path
    if path.name == "__init__.py":
        parts.append(root.name)
    while (root.parent / "__init__.py").exists():
        root = root.parent
        parts.append(root.name)
    for part in parts:
        if not part.isidentifier():
            raise PackageError(f"{place!r} cannot be imported: {part!r} is no module name")
    return _admit(root, parts[-1]), ".".join(reversed(parts))


def _admit(root: Path, top: str) -> Path:
    if top in sys.stdlib_module_names or top in ("__main__", "millwheel"):
        raise PackageError(f"module {top!r} would hide the one that every process has: rename it ({root})")
    return root


# Packing code.


def _files(roots: list[Path]) -> Iterator[tuple[str, bytes]]:
    size = 0
    for root in dict.fromkeys(roots):
        for file in _walk(root, ()):
            size += file.stat().st_size
            if size > MAX_PACKAGE_BYTES:
                raise PackageError(
                    f"the code under {root} has more than {MAX_PACKAGE_BYTES:,} bytes: keep data out of the package"
                )
            yield file.relative_to(root.parent).as_posix(), file.read_bytes()


def _walk(path: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        real = path.resolve()
        if real in above:
            raise PackageError(f"{path} is a link to a directory above it: a package cannot hold itself")
        for child in sorted(path.iterdir()):
            if not _SKIPPED.fullmatch(child.name):
                yield from _walk(child, (*above, real))
    elif path.is_symlink():
        raise PackageError(f"{path} is a link to nothing")


def _zip(files: dict[str, bytes]) -> bytes:
    """A zip file without compression and times, in the order of the names. Compressors differ between machines."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()
