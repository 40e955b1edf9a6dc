#!/bin/bash
# Run a command on the compiled tree instead of the checkout's package: `tools/compiled.sh COMMAND...`.
# Benchmarks, tests and the simulator still come from the checkout.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tools/compile.sh" --fresh || { echo "build/compiled is not there, or not of these sources: make compiled" >&2; exit 1; }
# Without the first, Python looks where it stands before it looks where it is told.
export PYTHONSAFEPATH=1 PYTHONPATH="$root/build/compiled:$root"
exec "$root/tools/run.sh" "$@"
