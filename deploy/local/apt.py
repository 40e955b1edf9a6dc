"""Programs from Debian's packages, unpacked beside the checkout. Nothing is enabled, configured or started."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["COMPONENTS", "InstallError", "library_path", "program", "unpack"]

COMPONENTS: Final = Path(__file__).resolve().parents[2] / "build" / "components"
"""The folder of the components.

Invariant: a component's folder is complete if it exists. It is built elsewhere and then renamed.
"""


class InstallError(Exception):
    """A component cannot be installed. The message says what to do."""


def unpack(package: str, *, with_needed: bool = False) -> Path:
    """The folder with the files of a Debian package. It is downloaded and unpacked if it does not exist yet.

    ``with_needed``: also the files of the packages that it needs and this machine does not have.
    """
    folder = COMPONENTS / package
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise InstallError(f"{package} is installed from Debian's or Ubuntu's packages, and there is no apt-get here")
    COMPONENTS.mkdir(parents=True, exist_ok=True)
    if not _has_candidate(package):
        _update_lists(f"to find {package}")
        if not _has_candidate(package):
            raise InstallError(
                f"this machine's package sources have no {package}: enable Debian's main, or Ubuntu's universe"
            )
    with tempfile.TemporaryDirectory(dir=COMPONENTS) as temporary:
        print(f"install: downloading {package} from the distribution's packages", flush=True)
        try:
            _download(package, with_needed, temporary)
        except InstallError as error:
            # A list of some days ago names versions that are no longer there.
            try:
                _update_lists("because it may be old")
            except InstallError as second:
                raise InstallError(f"{error}. The lists of packages may be old, and {second}") from error
            _download(package, with_needed, temporary)
        unpacked = Path(temporary, "unpacked")
        for archive in Path(temporary).glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), str(unpacked)])
        try:
            unpacked.rename(folder)
        except OSError:
            # Another process was faster.
            if not folder.is_dir():
                raise
    return folder


def program(name: str, package: str, folder: str = "bin", *, with_needed: bool = False) -> Path:
    """The path of a program: the one on PATH, or Debian's, which is downloaded into the build folder.

    Args:
        name: The program.
        package: The package that has it.
        folder: Where it is below ``/usr``. No PATH of a user has ``sbin``, so that is looked into as well.
        with_needed: As for :func:`unpack`.
    """
    on_path = shutil.which(name) or shutil.which(name, path=f"/usr/{folder}")
    if on_path is not None:
        return Path(on_path)
    found = unpack(package, with_needed=with_needed) / "usr" / folder / name
    if not found.is_file():
        raise InstallError(f"the package {package} has no {name}: {found} is missing; delete the folder and try again")
    return found


def library_path(root: Path) -> dict[str, str]:
    """The environment in which a program finds the libraries that were unpacked with it.

    ``root``: what ``usr`` is in. Nothing is needed for a program of the machine itself.
    """
    unpacked = root.glob("usr/lib/**/lib*.so*") if root != Path("/") else ()
    folders = sorted({str(one.parent) for one in unpacked})
    return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}


def _download(package: str, with_needed: bool, folder: str) -> None:
    for former in Path(folder).glob("*.deb"):  # of an attempt before, and maybe of an older version
        former.unlink()
    packages = [package, *_needed(package)] if with_needed else [package]
    _run(["apt-get", "download", "-qq", *packages], cwd=folder)


def _update_lists(why: str) -> None:
    print(f"install: apt-get update, {why}", flush=True)
    _run(["apt-get", "update", "-qq"], as_root=True)


def _needed(package: str) -> list[str]:
    """What an installation of the package would install, by a simulated one, which changes nothing."""
    plan = _run(["apt-get", "install", "--simulate", "--no-install-recommends", package])
    words = (line.split() for line in plan.splitlines())
    return [one[1] for one in words if one[:1] == ["Inst"] and one[1] != package]


def _has_candidate(package: str) -> bool:
    found = subprocess.run(
        ["apt-cache", "policy", package], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    return any(
        line.strip().startswith("Candidate:") and not line.strip().endswith("(none)")
        for line in found.stdout.splitlines()
    )


def _run(command: list[str], *, as_root: bool = False, cwd: str | None = None) -> str:
    if as_root and os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise InstallError(f"as root: {' '.join(command)}")
        command = ["sudo", "-n", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
