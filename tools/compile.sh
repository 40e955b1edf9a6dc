#!/bin/bash
# Make build/compiled: the package, its hot modules compiled by mypyc as setup.py says. Quick when nothing has changed.
# `tools/compile.sh --fresh` only tells, by its exit code, whether it is there and made of the sources as they are.
# Needs a C compiler and Python's headers, and installs them where they are missing and it may.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/compiler.sh

python=.venv/bin/python
tree=build/compiled
sources=(setup.py pyproject.toml README.md LICENSE docs/millwheel.1 millwheel master worker authority injectors)

fail() {
    printf 'compile: %s; benchmarks measure pure Python\n' "$*" >&2
    exit 1
}

# What a compiled tree is known by: where it stands, what made it, and of what.
wanted() {
    {
        pwd -P
        "$python" -c 'import sys; from importlib.metadata import version; print(sys.version, version("mypy"))'
        find "${sources[@]}" -type f ! -path '*/__pycache__/*' | LC_ALL=C sort | tr '\n' '\0' | xargs -0 sha256sum
    } | sha256sum
}

is_fresh() { [ "$(cat $tree/made-of 2>/dev/null)" = "$(wanted)" ]; }

# All happens in copies: neither setuptools nor mypyc leaves a file among the sources.
compile() {
    local made_of
    made_of=$(wanted)
    rm -rf $tree.src $tree.new
    mkdir -p $tree.src
    tar -c --exclude=__pycache__ "${sources[@]}" | tar -x -C $tree.src
    (cd $tree.src && MILLWHEEL_COMPILE=1 "$OLDPWD/$python" -m pip --disable-pip-version-check --no-input install \
        --no-deps --no-build-isolation --target ../compiled.new .) >$tree.log 2>&1 || fail "it failed, as $tree.log says"
    PYTHONSAFEPATH=1 PYTHONPATH=$PWD/$tree.new "$python" -c \
        'from millwheel.worker.interval import core; assert core.__file__.endswith(".so"), core.__file__' >>$tree.log 2>&1 ||
        fail "what was made does not work, as $tree.log says"
    echo "$made_of" >$tree.new/made-of
    rm -rf $tree
    mv $tree.new $tree
    rm -rf $tree.src
}

if [ "${1:-}" = --fresh ]; then is_fresh; exit; fi
is_fresh && exit
ensure_compiler
echo "compile: compiling the worker's core (a minute or two)"
compile
