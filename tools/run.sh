#!/bin/bash
# Run a command in the project's environment: `tools/run.sh COMMAND...`.
# .venv comes first on PATH; JAVA_HOME names a runtime that Spark can use, where there is one.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Processes start by the hundred: what is compiled is kept, whatever the environment says.
unset PYTHONDONTWRITEBYTECODE
export PATH="$root/.venv/bin:$PATH"
if home=$("$root/tools/find_java.sh"); then
    export JAVA_HOME=$home
fi
# Spark's parts talk over loopback; else it asks for the address of this machine's name, which may have none.
export SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1} SPARK_LOCAL_HOSTNAME=${SPARK_LOCAL_HOSTNAME:-localhost}
exec "$@"
