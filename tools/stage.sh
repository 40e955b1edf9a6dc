#!/bin/bash
# Run one stage of the checks: `tools/stage.sh NAME COMMAND...`. Quiet when it passes; when it fails, its output and its name.
set -euo pipefail
name=$1
shift
if output=$("$@" 2>&1); then
    printf '  %-24s ok\n' "$name"
else
    printf '%s\n' "$output"
    printf 'FAILED at: %s   (again with: %s)\n' "$name" "$*" >&2
    exit 1
fi
