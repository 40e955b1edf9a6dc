#!/bin/bash
# Print the home of a Java runtime that Spark 4 can use, or exit with 1 if there is none.
#
# Looked at in this order: JAVA_HOME, the java on PATH, then where packages and version managers put runtimes.
# Usable means: it starts, is 17 or newer, and has the vector module that Spark loads (some runtimes leave it out).
# A java that is missing from PATH, or too old there, doesn't hide a good one elsewhere. JVM_FOLDERS: other folders to look in.
set -euo pipefail
shopt -s nullglob

usable() {
    [ -x "$1/bin/java" ] || return 1
    local version
    version=$("$1/bin/java" --add-modules jdk.incubator.vector -version 2>&1) || return 1
    [[ $version =~ version\ \"([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 17 ]
}

candidates=()
[ -n "${JAVA_HOME:-}" ] && candidates+=("$JAVA_HOME")
on_path=$(command -v java || true)
[ -n "$on_path" ] && candidates+=("$(dirname "$(dirname "$(readlink -f "$on_path")")")")
for folder in ${JVM_FOLDERS:-/usr/lib/jvm /opt/java "${HOME:-/root}/.sdkman/candidates/java"}; do
    # The releases that Spark is tested on come before newer ones.
    candidates+=("$folder"/*17* "$folder"/*21* "$folder"/*)
done

for home in "${candidates[@]}"; do
    if usable "$home"; then
        (cd "$home" && pwd -P)
        exit 0
    fi
done
exit 1
