"""Loads a topology from MODULE:ATTR on the command line through its code package, as a worker loads it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.package import CodePackage, build_package, load_topology
from millwheel.sdk.topology import TopologyGraph

__all__ = ["Packaged", "load"]


@dataclass(frozen=True, slots=True)
class Packaged:
    """A topology and the code package from which it was loaded."""

    topology: TopologyGraph
    package: CodePackage
    signature: bytes = b""

    def named(self, name: str) -> Packaged:
        """The same code for a topology of another name. Empty: the name that the code says."""
        return replace(self, topology=self.topology.named(name)) if name else self

    def spec(self) -> specs.TopologySpec:
        """Return the specification for the cluster. TopologyError lists all problems of the topology."""
        code = self.package.reference()
        code.signature = self.signature
        return self.topology.to_spec(code)


def load(target: str, include: Sequence[str] = (), sign_key: Path | None = None) -> Packaged:
    """Package the code at ``target``, sign it if ``sign_key`` names a key, and load the topology from the package.

    This finds modules that the package lacks before a worker loads it. PackageError: the code cannot be packaged or
    loaded.
    """
    package = build_package(target, include=include)
    signature = b"" if sign_key is None else _signed(sign_key, package.digest)
    # The directory is kept until the process ends, because the code may import further modules from it later.
    directory = tempfile.mkdtemp(prefix="millwheel-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    topology = load_topology(package.digest, package.data, package.entry_point, Path(directory))
    return Packaged(topology, package, signature)


def _signed(path: Path, digest: str) -> bytes:
    # A late import: few sign.
    from millwheel.cli.signing import read_signing_key
    from millwheel.rpc.access.signatures import sign_package

    return sign_package(read_signing_key(path), digest)
