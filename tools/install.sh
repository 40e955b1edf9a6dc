#!/bin/bash
# Make .venv with the project and all that its checks and demonstrations need, and see to a Java runtime.
# Quick when there is nothing to do. Needs python3 >= 3.11, and root or sudo only where a system package is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/apt.sh

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.14; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            # The interpreter itself, not a version manager's shim in front of it.
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    python=$(find_python) || fail "no python3 >= 3.11 on PATH; install one (Debian 12+, Ubuntu 24.04+: apt-get install python3)"
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian ships the two apart from the interpreter.
        local versioned
        versioned=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        apt_install "$versioned" python3-venv || true
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python cannot make virtual environments; as root: apt-get install $versioned"
    fi
    echo "install: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

# What an up-to-date .venv is known by: where it stands, and what was asked for.
wanted() { { pwd -P; cat pyproject.toml tools/constraints.txt tools/install.sh; } | sha256sum; }

install_packages() {
    [ "$(cat .venv/installed 2>/dev/null)" = "$(wanted)" ] && return
    echo "install: installing packages (a few minutes the first time)"
    # A new venv's pip is as old as its Python, and setuptools may be missing. With both pinned and no isolation,
    # what is built from source (this project, pyspark) is built the same way everywhere.
    local pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet
        --retries 5 --constraint tools/constraints.txt)
    "${pip[@]}" pip setuptools || fail "pip could not install pip and setuptools; its message is above"
    # The warning silenced: setuptools reminds of what an editable installation is.
    PYTHONWARNINGS=ignore "${pip[@]}" --no-build-isolation --editable '.[demo,dev]' || fail "pip could not install the packages; its message is above"
    wanted >.venv/installed
}

ensure_java() {
    tools/find_java.sh >/dev/null && return
    apt_install openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless || true
    tools/find_java.sh >/dev/null ||
        fail "no Java runtime >= 17 for Spark; as root: apt-get install openjdk-17-jre-headless (or 21), or set JAVA_HOME"
}

.venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || make_venv
install_packages
ensure_java
