#!/bin/sh
# Builds the Debian packages in a copy of the sources, with Debian's tools, and writes them into a directory.
#
# usage: scripts/debian_package.sh DIRECTORY [OPTION ...]
#
# The options go to dpkg-buildpackage: -Ppkg.brokerd.noarchive leaves the package brokerd-archive out.
set -eu

for tool in dpkg-buildpackage dh debconf-updatepo; do
    command -v $tool >/dev/null 2>&1 || missing=1
done
/usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing=1
if [ "${missing:-}" ]; then
    echo "debian_package: apt-get install -y dpkg-dev debhelper po-debconf python3-venv" >&2
    exit 2
fi

mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
rm -rf "$directory/build"
source=$directory/build/brokerd
mkdir -p "$source"
for path in brokerd pyspark_brokerd twisted scripts etc debian setup.cfg setup.py pyproject.toml MANIFEST.in \
    constraints.txt README.rst NEWS.rst LICENSE; do
    tar -cf - --exclude=__pycache__ --exclude=dropin.cache "$path" | tar -C "$source" -xf -
done
cd "$source"
log=$directory/build/log
dpkg-buildpackage --build=binary --unsigned-source --unsigned-changes "$@" >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    exit 1
}
grep -o "brokerd: pure Python.*" "$log" || true
mv ../*.deb ../*.buildinfo ../*.changes "$directory"
rm -rf "$directory/build"
ls -l "$directory"/*.deb
