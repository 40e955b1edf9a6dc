# Sourced: how the other scripts get system packages, where they may.

# Run as root; asks for a password only where somebody can type one.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
    else
        return 127
    fi
}

# Install the first of the named Debian packages that the machine's package sources have.
apt_install() {
    command -v apt-get >/dev/null || return 1
    if [ -z "${updated:-}" ]; then
        as_root apt-get update -qq || return 1
        updated=yes
    fi
    local package
    for package in "$@"; do
        if [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [0-9] ]]; then
            echo "install: apt-get install $package"
            # --reinstall: a package may be on record as installed while its files are gone.
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --reinstall --no-install-recommends \
                -o DPkg::Lock::Timeout=300 "$package" </dev/null >/dev/null
            return
        fi
    done
    return 1
}
