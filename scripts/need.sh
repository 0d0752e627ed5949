#!/usr/bin/env bash
# Finds the programs that the machine must have, and prints the Python to use.
#
#   scripts/need.sh build   a Python >= 3.11 that can make a virtualenv and compile, and a C compiler
#   scripts/need.sh redis   also redis-server and its tools: tests and bench compare with them
#   scripts/need.sh test    also strace, with which a test checks that no reply is sent before its fsync,
#                           and setpriv, with which tests run by root drop root's permissions;
#                           systemd-analyze, which checks the service file;
#                           and Node.js with npm, for the clients that are written for it;
#                           a Java 17 or 21, on which Spark runs,
#                           and PostgreSQL, whose changes are captured;
#                           Prometheus and redis_exporter, which the metrics are compared with,
#                           etcd, which clusters of many machines share,
#                           and Chromium, which shows the dashboard, also through nginx: its shell
#                           without windows, which takes less time, or the whole browser
#   scripts/need.sh java    installs nothing, and prints the JAVA_HOME of such a Java
#
# Missing programs are installed with apt, as root or with sudo without a password. If that is not
# possible, one apt line is printed and the exit code is 1. Installed programs are never upgraded. Only
# the path of Python goes to standard output. With PYTHON=... that Python is used and none is installed.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# A version number is not enough: Debian's Python comes without ensurepip and without headers.
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
            # A version manager's shim runs the real program, whose path does not change.
            "$path" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

# Spark 4 runs on Java 17 and 21, and the machine's default may be another version. A file contains the
# version, so Java need not be started; JAVA_HOME or a shim finds the Java of macOS and version managers.
find_java() {
    local home
    for home in "${JAVA_HOME:-}" "$(command -v java | xargs -r readlink -f)" /usr/lib/jvm/*; do
        home=${home%/bin/java}
        if [[ -x $home/bin/java ]] && grep -qsE '^JAVA_VERSION="(17|21)[".]' "$home/release"; then
            echo "$home"
            return
        fi
    done
    return 1
}

# Debian 13 no longer has 17, Debian 12 not yet 21.
java_package() {
    if grep -qsE '^VERSION_CODENAME=(bullseye|bookworm)$' /etc/os-release; then
        echo openjdk-17-jre-headless
    else
        echo openjdk-21-jre-headless
    fi
}

SHELL_PACKAGE=chromium-headless-shell

has_shell() { command -v chromium-headless-shell >/dev/null; }

missing_packages() {
    find_python >/dev/null || echo python3 python3-venv python3-dev gcc libc6-dev
    if [[ $what != build ]]; then
        command -v redis-server >/dev/null || echo redis-server
        { command -v redis-cli && command -v redis-benchmark; } >/dev/null || echo redis-tools
    fi
    if [[ $what == test ]]; then
        command -v strace >/dev/null || echo strace
        command -v setpriv >/dev/null || echo util-linux
        command -v systemd-analyze >/dev/null || echo systemd
        command -v node >/dev/null || echo nodejs
        command -v npm >/dev/null || echo npm
        find_java >/dev/null || java_package
        compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || echo postgresql
        { command -v prometheus && command -v promtool; } >/dev/null || echo prometheus
        command -v prometheus-redis-exporter >/dev/null || echo prometheus-redis-exporter
        { has_shell || command -v chromium; } >/dev/null || echo $SHELL_PACKAGE
        command -v etcd >/dev/null || echo etcd-server
        [[ -x /usr/sbin/nginx ]] || command -v nginx >/dev/null || echo nginx-light
        compgen -G '/usr/share/fonts/truetype/*/*.ttf' >/dev/null || echo fonts-dejavu-core
    fi
}

# Debian's postgresql makes a cluster and starts it, unless a file here says otherwise.
without_a_cluster() {
    local folder=/etc/postgresql-common/createcluster.d
    "$@" mkdir -p $folder
    echo 'create_main_cluster = false' | "$@" tee $folder/no-main-cluster.conf >/dev/null
}

install() {
    local as_root=()
    if [[ $(id -u) != 0 ]]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    command -v apt-get >/dev/null || return 1
    say "Installing: $*"
    [[ " $* " != *" postgresql "* ]] || without_a_cluster "${as_root[@]}"
    local get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y)
    get_install() { "${get[@]}" install --no-install-recommends --no-upgrade "$@" >&2; }
    get_install "$@" || { "${get[@]}" update >&2 && get_install "$@"; }
}

what=${1:?build, redis, test or java}
if [[ $what == java ]]; then
    find_java
    exit
fi
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
if [[ $what == test ]] && ! has_shell; then
    install $SHELL_PACKAGE || say "The tests run without $SHELL_PACKAGE, but take longer."
fi
find_python
