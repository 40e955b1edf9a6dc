"""Generate the stubs of the protos, or check that they are up to date (--check).

protoc names Python modules after the proto package, for example ``millwheel.v1``. The stubs are in
``millwheel.rpc.v1``, so this script rewrites the imports between them. It also types the fields for incarnation ids.
"""

from __future__ import annotations

import filecmp
import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
WELL_KNOWN = files("grpc_tools").joinpath("_proto")
"""protobuf's own protos: descriptor.proto, for the option of methods."""
PACKAGES = {"millwheel.v1": "millwheel.rpc.v1", "millwheel.etcd.v3": "millwheel.coordination.etcd.v3"}
"""The Python package that contains the stubs of each proto package."""


def _folder(package: str) -> Path:
    return Path(*package.split("."))


def generate(package: str, into: Path) -> None:
    """Write new stubs of a proto package into the folder ``into``."""
    home, folder = PACKAGES[package], _folder(package)
    name = re.escape(package)
    with tempfile.TemporaryDirectory() as raw:
        protos = sorted(str(path.relative_to(PROTO)) for path in (PROTO / folder).glob("*.proto"))
        arguments = [
            "protoc",
            f"-I{PROTO}",
            f"-I{WELL_KNOWN}",
            f"--python_out={raw}",
            f"--grpc_python_out={raw}",
            f"--mypy_out={raw}",
        ]
        arguments += [f"--mypy_grpc_out={raw}", *_plugins(), *protos]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed; its messages are above")
        services = any(re.search(r"^service ", (PROTO / file).read_text(), re.MULTILINE) for file in protos)
        for path in sorted((raw / folder).iterdir()):
            if "_grpc" in path.name and not services:
                continue
            text = re.sub(rf"\b{name} import", f"{home} import", path.read_text())
            text = re.sub(rf"\bimport {name}\.", f"import {home}.", text)
            text = re.sub(rf"(?<![\w/.\"']){name}\.(\w+_pb2)", rf"{home}.\1", text)
            if path.suffix == ".pyi":
                text = _typed_incarnations(text)
            if (text.strip() and "_grpc" in path.name) or not path.name.endswith("_pb2_grpc.py"):
                (into / path.name).write_text(text)
    (into / "__init__.py").write_text(
        f'"""Stubs generated from proto/{folder} by `make proto`; not edited by hand."""\n'
    )


def _typed_incarnations(stub: str) -> str:
    """Give the fields ``incarnation``, ``incarnations`` and ``consumer`` the type IncarnationId."""
    text, one = re.subn(
        r"^( +(?:incarnation|consumer): )_builtins\.str\b", r"\1_IncarnationId", stub, flags=re.MULTILINE
    )
    text, many = re.subn(r"(\bincarnations\b.*\[_builtins\.str, )_builtins\.str\]", r"\1_IncarnationId]", text)
    if not one + many:
        return stub
    line = "from millwheel.model.incarnation import IncarnationId as _IncarnationId\n"
    return re.sub(r"(?=^import|^from )", line, text, count=1, flags=re.MULTILINE)


def _plugins() -> list[str]:
    """protoc's options for its plugins. They are beside the running interpreter, which need not be on PATH."""
    beside = Path(sys.executable).parent
    return [f"--plugin={name}={beside / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]


def check() -> int:
    """Return 0 if the stubs in the tree match the protos. Otherwise print the stale files and return 1."""
    stale = []
    for package, home in PACKAGES.items():
        stubs = ROOT / _folder(home)
        with tempfile.TemporaryDirectory() as raw:
            fresh = Path(raw)
            generate(package, fresh)
            names = {path.name for path in fresh.iterdir()} | {p.name for p in stubs.iterdir() if p.is_file()}
            stale += [str(stubs / name) for name in sorted(names) if not _same(fresh / name, stubs / name)]
    if stale:
        print("stale generated code, run `make proto`:", *stale, sep="\n  ")
    return 1 if stale else 0


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and filecmp.cmp(one, other, shallow=False)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        raise SystemExit(check())
    for one, home in PACKAGES.items():
        generate(one, ROOT / _folder(home))
