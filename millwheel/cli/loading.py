"""From a MODULE:ATTR on the command line to a topology with its code package, as a worker will load it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.package import CodePackage, build_package, load_topology
from millwheel.sdk.topology import Topology

__all__ = ["Packaged", "load"]


@dataclass(frozen=True, slots=True)
class Packaged:
    """A topology, and the code package that it was loaded from."""

    topology: Topology
    package: CodePackage

    def spec(self) -> specs.TopologySpec:
        """What is sent to the cluster; TopologyError lists everything wrong with it."""
        return self.topology.to_spec(self.package.reference())


def load(target: str, include: Sequence[str] = ()) -> Packaged:
    """Package the code at ``target``, and load the topology out of the package.

    What the package lacks is found missing here and not in a worker. PackageError says what is wrong.
    """
    package = build_package(target, include=include)
    # Kept until the process ends: the code may import more of itself later.
    directory = tempfile.mkdtemp(prefix="millwheel-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    topology = load_topology(package.digest, package.data, package.entry_point, Path(directory))
    return Packaged(topology, package)
