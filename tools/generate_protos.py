"""Generate the stubs of proto/millwheel/v1 into millwheel/rpc/v1, or check that they are fresh (--check).

protoc names Python modules after the proto package, ``millwheel.v1``; the stubs live in
``millwheel.rpc.v1``, so the imports between them are rewritten.
"""

from __future__ import annotations

import filecmp
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
STUBS = ROOT / "millwheel" / "rpc" / "v1"


def generate(into: Path) -> None:
    """Write fresh stubs into the folder ``into``."""
    with tempfile.TemporaryDirectory() as raw:
        files = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "millwheel" / "v1").glob("*.proto"))
        arguments = ["protoc", f"-I{PROTO}", f"--python_out={raw}", f"--grpc_python_out={raw}", f"--mypy_out={raw}"]
        arguments += [f"--mypy_grpc_out={raw}", *_plugins(), *files]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed; its messages are above")
        for path in sorted(Path(raw, "millwheel", "v1").iterdir()):
            text = re.sub(r"\bmillwheel\.v1 import", "millwheel.rpc.v1 import", path.read_text())
            text = re.sub(r"\bimport millwheel\.v1\.", "import millwheel.rpc.v1.", text)
            text = re.sub(r"(?<![\w/.\"'])millwheel\.v1\.(\w+_pb2)", r"millwheel.rpc.v1.\1", text)
            if (text.strip() and "_grpc" in path.name) or not path.name.endswith("_pb2_grpc.py"):
                (into / path.name).write_text(text)
    (into / "__init__.py").write_text(
        '"""Stubs generated from proto/millwheel/v1 by `make proto`; not edited by hand."""\n'
    )


def _plugins() -> list[str]:
    """Where protoc finds the plugins: beside the running interpreter, be it on PATH or not."""
    beside = Path(sys.executable).parent
    return [f"--plugin={name}={beside / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]


def check() -> int:
    """0 if the stubs in the tree are those that the protos give, else 1 with the stale files named."""
    with tempfile.TemporaryDirectory() as raw:
        fresh = Path(raw)
        generate(fresh)
        names = {path.name for path in fresh.iterdir()} | {p.name for p in STUBS.iterdir() if p.is_file()}
        stale = sorted(name for name in names if not _same(fresh / name, STUBS / name))
    if stale:
        print("stale generated code, run `make proto`:", *stale, sep="\n  ")
    return 1 if stale else 0


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and filecmp.cmp(one, other, shallow=False)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        raise SystemExit(check())
    generate(STUBS)
