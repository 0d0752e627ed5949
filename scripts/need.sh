#!/usr/bin/env bash
# Finds what the machine itself must have, and prints the Python to use.
#
#   scripts/need.sh build   a Python >= 3.11 that can make a virtualenv and compile, and a C compiler
#   scripts/need.sh redis   also redis-server and its tools: tests and bench compare with them
#   scripts/need.sh test    also strace, by which a test sees that no reply leaves before its fsync,
#                           and setpriv, by which root is asked for permission as others are;
#                           and Node.js with npm, for the clients that are written for it
#
# What is missing is installed with apt where root or a sudo without password allows it. Otherwise
# one apt line is printed and the exit code is 1. What is there is never upgraded. Only the Python's
# path goes to standard output. PYTHON=... chooses the Python, and then none is installed.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# A version number is not enough: a Debian Python comes without ensurepip and without headers.
can_make_venv() { "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))'; }

can_compile() {
    local headers
    headers=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))') &&
        echo '#include <Python.h>' | ${CC:-cc} -I"$headers" -fsyntax-only -x c -
}

find_python() {
    local candidate path candidates=(python3 /usr/bin/python3 python3.{14..11})
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        path=$(command -v "$candidate") || continue
        if { can_make_venv "$path" && can_compile "$path"; } >/dev/null 2>&1; then
            # Behind a version manager's shim stands the real program, which stays the same.
            "$path" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

missing_packages() {
    find_python >/dev/null || echo python3 python3-venv python3-dev gcc libc6-dev
    if [[ $what != build ]]; then
        command -v redis-server >/dev/null || echo redis-server
        { command -v redis-cli && command -v redis-benchmark; } >/dev/null || echo redis-tools
    fi
    if [[ $what == test ]]; then
        command -v strace >/dev/null || echo strace
        command -v setpriv >/dev/null || echo util-linux
        command -v node >/dev/null || echo nodejs
        command -v npm >/dev/null || echo npm
    fi
}

install() {
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    command -v apt-get >/dev/null || return 1
    say "Installing: $*"
    local get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y)
    get_install() { "${get[@]}" install --no-install-recommends --no-upgrade "$@" >&2; }
    get_install "$@" || { "${get[@]}" update >&2 && get_install "$@"; }
}

what=${1:?build, redis or test}
if [[ -n ${PYTHON:-} ]] && ! find_python >/dev/null; then
    say "PYTHON=$PYTHON does not fit: needed are version 3.11 or newer, venv, headers, and a C compiler"
    exit 1
fi
read -r -d '' -a missing < <(missing_packages) || true
if ((${#missing[@]})); then
    if ! install "${missing[@]}" || [[ -n $(missing_packages) ]]; then
        say "Some packages are missing. Please run:"
        say "  sudo apt-get install ${missing[*]}"
        exit 1
    fi
fi
find_python
