#!/bin/bash
# Build what a release consists of into dist/: the source distribution, the wheel, and the compiled wheel of this Python.
# Both wheels are built from the source distribution. A second wheel, built from the checkout, is for comparison only:
# build/dist/checkout. `pytest -m release tests/release` compares and tries what was built. Nothing is downloaded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/compiler.sh

python=$PWD/.venv/bin/python
out=$PWD/dist
work=$PWD/build/dist

fail() {
    printf 'dist: %s\n' "$*" >&2
    exit 1
}

# Without isolation: with the pinned setuptools of .venv.
build() { "$python" -m build --no-isolation "$@" >>"$work/log" 2>&1 || fail "it failed, as $work/log says"; }

[ -z "$(git status --porcelain)" ] || echo "dist: there are changes that are not committed; a release is built without such" >&2
ensure_compiler

# With it, equal sources give equal wheels, bit for bit. umask: file modes are part of a wheel.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

# From a copy of what git knows: no other file comes in, and the build leaves nothing among the sources.
rm -rf "$out" "$work"
mkdir -p "$out" "$work/sources" "$work/unpacked"
git ls-files -z | tar -c --null --mode='u+rwX,go+rX,go-w' -T - | tar -x -C "$work/sources"

echo "dist: building the source distribution, and the wheel from it"
build --outdir "$out" "$work/sources"
build --wheel --outdir "$work/checkout" "$work/sources"
echo "dist: compiling a wheel from the source distribution (a minute or two)"
tar -xzf "$out"/*.tar.gz --strip-components 1 -C "$work/unpacked"
MILLWHEEL_COMPILE=1 build --wheel --outdir "$out" "$work/unpacked"
