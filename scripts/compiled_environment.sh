#!/bin/sh
# Builds the compiled wheel and installs it into an environment of its own.
#
# usage: scripts/compiled_environment.sh VENV DIRECTORY
#
# DIRECTORY/env has the wheel, the packages of VENV, and last this working copy with its tests. Run
# it with PYTHONSAFEPATH=1: otherwise Python puts the working copy first, which is not compiled.
set -eu

venv=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd)
rm -rf "$directory/wheel" "$directory/env"

BROKERD_COMPILE=1 "$venv/bin/python" -m pip wheel --quiet --no-deps -w "$directory/wheel" .
"$venv/bin/python" -m venv --without-pip "$directory/env"
python=$directory/env/bin/python
"$venv/bin/python" -m pip --python "$python" install --quiet --no-deps --no-index "$directory"/wheel/*.whl

purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
site=$("$python" -c "$purelib")
{ "$venv/bin/python" -c "$purelib"; pwd; } >"$site/shared.pth"
sed "1s|.*|#!$python|" "$venv/bin/twistd" >"$directory/env/bin/twistd"
chmod +x "$directory/env/bin/twistd"
