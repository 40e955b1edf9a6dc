"""Loads a topology from MODULE:ATTR on the command line through its code package, as a worker loads it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
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

    def spec(self) -> specs.TopologySpec:
        """Return the specification for the cluster. TopologyError lists all problems of the topology."""
        return self.topology.to_spec(self.package.reference())


def load(target: str, include: Sequence[str] = ()) -> Packaged:
    """Package the code at ``target``, and load the topology from the package.

    This finds modules that the package lacks before a worker loads it. PackageError: the code cannot be packaged or
    loaded.
    """
    package = build_package(target, include=include)
    # The directory is kept until the process ends, because the code may import further modules from it later.
    directory = tempfile.mkdtemp(prefix="millwheel-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    topology = load_topology(package.digest, package.data, package.entry_point, Path(directory))
    return Packaged(topology, package)
