# Sourced: how the scripts that compile get a C compiler and Python's headers. The script that sources it defines `fail`
# and `python`.
source tools/apt.sh

# A C compiler that finds Python's headers.
can_compile() {
    local headers
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    echo '#include <Python.h>' | "${CC:-cc}" -E -I"$headers" - >/dev/null 2>&1
}

ensure_compiler() {
    can_compile && return
    local versioned
    versioned=$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')
    command -v "${CC:-cc}" >/dev/null || apt_install gcc || true
    can_compile || apt_install libc6-dev || true
    can_compile || apt_install "$versioned" python3-dev || true
    can_compile || fail "no C compiler with the headers of this Python; as root: apt-get install gcc libc6-dev $versioned"
}
