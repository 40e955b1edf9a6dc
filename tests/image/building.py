"""Carries out the Dockerfile without a container engine: each stage is a folder, and RUN runs in it by chroot.

The base is what debootstrap makes of the same release of Debian. It needs root. What an engine adds is not tried: its
layers, its cache, and its user namespaces.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from deploy.local.apt import COMPONENTS
from tests.deploy.dockerfile import FILE, Instruction, copied, instructions
from tests.house.tree import ROOT
from tests.patience import patience

FOLDER = ROOT / "build" / "image"
_SUITE = "bookworm"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(slots=True)
class Stage:
    """A stage while it is built."""

    root: Path
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    )
    folder: str = "/"

    def path(self, text: str) -> Path:
        """The path on this machine of one in the stage."""
        return self.root / str(Path(self.folder, text)).lstrip("/")


def run(command: list[str], **options: str) -> str:
    """Run a command. An AssertionError has its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(180), **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(command)[:300]}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


def base() -> Path:
    """A root of the release of Debian that the Dockerfile names, made once."""
    root = COMPONENTS / f"debian-{_SUITE}"
    if not root.is_dir():
        listed = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"])
        mirrors = sorted({line for line in listed.splitlines() if line.split()[1].startswith(_SUITE)})
        (mirror,) = [line.split()[0] for line in mirrors if line.split()[1] == _SUITE]
        made = root.with_name(f"{root.name}.{os.getpid()}")
        run(["debootstrap", "--variant=minbase", _SUITE, str(made), mirror])
        (made / "etc/apt/sources.list").write_text("".join(f"deb {line} main\n" for line in mirrors))
        made.rename(root)
    return root


@cache
def image() -> Path:
    """The root of the last stage. It is kept until the Dockerfile, or what it copies, changes."""
    assert os.geteuid() == 0, "chroot needs root: sudo make test-image"
    made_of, stamp = _sources(), FOLDER / "made-of"
    if stamp.is_file() and stamp.read_text() == made_of:
        return FOLDER / "image"
    shutil.rmtree(FOLDER, ignore_errors=True)
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage = Stage(Path())
    for one in instructions():
        match one.word:
            case "FROM":
                source, _, name = one.rest.partition(" AS ")
                root = FOLDER / (name or "image")
                FOLDER.mkdir(parents=True, exist_ok=True)
                before = stages.get(source)
                run(["cp", "--archive", str(base() if before is None else before.root), str(root)])
                stage = stages[name or "image"] = Stage(root)
            case "RUN":
                in_root(stage, one.rest)
            case "COPY":
                _copy(stage, one, stages)
            case "WORKDIR":
                stage.folder = one.rest
                stage.path(".").mkdir(parents=True, exist_ok=True)
            case "ENV":
                stage.environment |= dict(item.split("=", 1) for item in shlex.split(one.rest))
            case "ARG":
                arguments |= dict([one.rest.split("=", 1)])
            case "LABEL" | "USER" | "EXPOSE" | "STOPSIGNAL" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                pass
            case word:
                raise AssertionError(word)
    stamp.write_text(made_of)
    return stage.root


def _sources() -> str:
    """A digest of all that the image is made of, but what the network gives."""
    digest = hashlib.sha256(FILE.read_bytes())
    for source in copied():
        found = ROOT / source
        files = sorted(path for path in found.rglob("*") if path.is_file()) if found.is_dir() else [found]
        for path in files:
            if "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def in_root(stage: Stage, command: str) -> None:
    """Run a command in a stage, with this machine's ways to the network."""
    # The machine's own ways to the network stay outside the image.
    given = {"PIP_CERT": "/run/certificates", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "DEBIAN_FRONTEND": "noninteractive"}
    variables = [f"{name}={value}" for name, value in (stage.environment | given).items()]
    root = shlex.quote(str(stage.root))
    inner = shlex.join(["chroot", str(stage.root), "/usr/bin/env", "-i", *variables, "/bin/sh", "-c"])
    inner += " " + shlex.quote(f"cd {stage.folder} && {command}")
    mounts = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && mount -t tmpfs tmpfs {root}/run"
    files = f"cp {_CERTIFICATES} {root}/run/certificates && touch {root}/etc/resolv.conf {root}/etc/hosts"
    binds = f"mount --bind /etc/resolv.conf {root}/etc/resolv.conf && mount --bind /etc/hosts {root}/etc/hosts"
    run(["unshare", "--mount", "/bin/sh", "-c", f"{mounts} && {files} && {binds} && {inner}"])


def _copy(stage: Stage, one: Instruction, stages: dict[str, Stage]) -> None:
    words = one.rest.split()
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    origin = stages[flags["from"]].root if "from" in flags else ROOT
    for source in sources:
        found, goal = origin / source.lstrip("/"), stage.path(target)
        if found.is_dir():
            shutil.copytree(
                found, goal, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        else:
            goal = goal / found.name if target.endswith("/") else goal
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, goal)
            if "chmod" in flags:
                goal.chmod(int(flags["chmod"], 8))
