#!/bin/sh
# Finds a Python that can build the environment, and checks what it needs before anything is changed.
#
# usage: scripts/preflight.sh [DIRECTORY] [MIB]
#
# MIB is the space that the directory must have free; the default is for all packages. Prints the
# interpreter's path on stdout. Otherwise names the missing piece on stderr and exits 2.
# Installs nothing. PYTHON=/path/to/python chooses the interpreter.
set -u

directory=${1:-.}
# Measured: 1.3 GiB stay, 2.9 GiB while pip builds Spark, 0.9 GiB in pip's cache.
needed_mib=${2:-4096}

fail() {
    echo "preflight: $1" >&2
    exit 2
}

is_new_enough() {
    [ "$("$1" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)" = True ]
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 || fail "PYTHON=$PYTHON is not a program; unset it or name a Python 3.11 or newer"
        is_new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or newer"
        command -v "$PYTHON"
        return
    fi
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        if command -v "$name" >/dev/null 2>&1 && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    if command -v python3 >/dev/null 2>&1; then
        fail "$(python3 --version 2>&1) is too old: Python 3.11 or newer is needed (Debian 12, Ubuntu 24.04: apt-get install -y python3-venv; Ubuntu 22.04: apt-get install -y python3.11-venv)"
    fi
    fail "no python3 found: apt-get install -y python3-venv"
}

venv_package() {
    # Debian keeps ensurepip in a package of its own, one for each Python version.
    if [ "$(basename "$1")" = python3 ]; then
        echo python3-venv
    else
        "$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
}

python=$(find_python) || exit 2

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no ensurepip: apt-get install -y $(venv_package "$python")"

free_mib=$(df -Pm "$directory" | awk 'NR == 2 { print $4 }')
[ "$free_mib" -ge "$needed_mib" ] ||
    fail "only $free_mib MiB free in $directory, $needed_mib MiB needed: free some space or clone elsewhere"

echo "$python"
