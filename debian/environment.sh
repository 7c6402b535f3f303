#!/bin/sh
# Makes /usr/lib/brokerd of the packages: an environment of Debian's Python with brokerd's wheel and the versions
# of constraints.txt. debian/rules calls it.
#
# usage: debian/environment.sh [with-archive]
set -eu

home=/usr/lib/brokerd
build=build/deb
environment=$PWD/$build/environment
python=$environment/bin/python
rm -rf "$build"
mkdir -p "$build"

/usr/bin/python3 -m venv "$environment"
export PIP_CONSTRAINT="$PWD/constraints.txt" PIP_NO_COMPILE=1 TMPDIR="$PWD/$build"

files() {
    (cd "$environment" && find . ! -type d ! -path '*/__pycache__/*' | LC_ALL=C sort)
}

# Puts the named files of the environment into a package, with byte code for this Python. Nobody may write there
# later, and dpkg removes what it has installed.
place() {
    root=debian/$1
    mkdir -p "$root$home"
    tar -C "$environment" -cf - --no-recursion -T - | tar -C "$root$home" -xf -
    find "$root$home/bin" -type f -exec sed -i "1s|^#!.*python[0-9.]*$|#!$home/bin/python|" {} +
    # Some wheels mark all their files as programs. Only Spark and Java have programs among them.
    find "$root$home/lib" -type f ! -path '*/bin/*' ! -path '*/jexec' ! -path '*/jspawnhelper' -exec chmod 644 {} +
    # Templates and tests of some libraries are no Python of this version.
    /usr/bin/python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$root" "$root$home" >/dev/null || true
}

# Compiled if python3-dev is there. pip shows the line that tells why not only with --verbose.
"$python" -m pip wheel --verbose --no-deps -w "$build" .
wheel=$(echo "$PWD/$build"/brokerd-*.whl)
files >"$build/before"
"$python" -m pip install --quiet "$wheel[schemas]"
for shell in bash zsh fish; do
    "$environment/bin/brokerctl" completion $shell >"$build/completion.$shell"
done
files >"$build/core"
if [ "${1:-}" = with-archive ]; then
    "$python" -m pip install --quiet "$wheel[spark]"
fi
files >"$build/all"

# Of the empty environment only the interpreter is needed.
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$environment/pyvenv.cfg"
{
    LC_ALL=C comm -13 "$build/before" "$build/core" | grep -v '^./bin/'
    echo ./bin/brokerctl
    echo ./bin/twistd
    echo ./pyvenv.cfg
    find "$environment/bin" -name 'python*' | sed "s|^$environment|.|"
} | place brokerd
if [ "${1:-}" = with-archive ]; then
    { LC_ALL=C comm -13 "$build/core" "$build/all" | grep -v '^./bin/'; echo ./bin/brokerd-rollup; } |
        place brokerd-archive
fi

# twistd keeps a list of its plugins beside them, and tries to write it while the list is not newer than they are.
# dpkg-deb sets later times than SOURCE_DATE_EPOCH to it.
plugins=$(echo debian/brokerd$home/lib/python3*/site-packages/twisted/plugins)
touch -d "@$((SOURCE_DATE_EPOCH - 60))" "$plugins"/*.py
"debian/brokerd$home/bin/python" -m twisted --help >"$build/plugins"
test -s "$plugins/dropin.cache"
chmod 644 "$plugins/dropin.cache"

/usr/bin/python3 -c 'import sys; a, b = sys.version_info[:2]; print(f"python3 (>= {a}.{b}~), python3 (<< {a}.{b + 1})")' \
    >"$build/python-depends"
