"""Tools that are written in Go, and files of Go modules: fetched once, by the go command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from deploy.local.apt import COMPONENTS, InstallError

__all__ = ["helm", "module_folder"]

_HELM: Final = "v3.22.0"


@cache
def helm() -> Path:
    """The path of the helm program: the one on PATH, or the pinned version, which is built into the build folder.

    Raises:
        InstallError: There is neither.
    """
    on_path = shutil.which("helm")
    if on_path is not None:
        return Path(on_path)
    folder = COMPONENTS / f"helm-{_HELM}"
    found = folder / "helm"
    if not found.is_file():
        print(f"install: building helm {_HELM} (some minutes)", flush=True)
        _go(["install", f"helm.sh/helm/v3/cmd/helm@{_HELM}"], {"GOBIN": str(folder)})
    return found


@cache
def module_folder(module: str, version: str) -> Path:
    """The folder with the files of a Go module.

    Raises:
        InstallError: It cannot be downloaded.
    """
    return Path(json.loads(_go(["mod", "download", "-json", f"{module}@{version}"]))["Dir"])


def _go(arguments: list[str], environment: dict[str, str] | None = None) -> str:
    if shutil.which("go") is None:
        raise InstallError(f"there is no go on PATH: `go {' '.join(arguments)}` needs it (https://go.dev/doc/install)")
    done = subprocess.run(
        ["go", *arguments], capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"`go {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
