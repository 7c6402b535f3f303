#!/bin/sh
# Makes an environment with an older Spark, and fetches the Delta Spark that runs on it.
#
# usage: scripts/older_spark_environment.sh VENV DIRECTORY PYSPARK DELTA
#
# DIRECTORY/env has PYSPARK, then the packages of VENV and this working copy. DIRECTORY/jars has Delta Spark
# DELTA, unless Maven is missing.
set -eu

venv=$1
mkdir -p "$2"
directory=$(cd "$2" && pwd)
test -e "$directory/installed-$3-$4" && exit
rm -rf "$directory"/env "$directory"/jars "$directory"/installed-*

"$venv/bin/python" -m venv --without-pip "$directory/env"
python=$directory/env/bin/python
mkdir -p "$directory/tmp"
echo "installing pyspark $3 into $2 (470 MB to fetch)"
TMPDIR=$directory/tmp "$venv/bin/python" -m pip --python "$python" install --quiet --no-deps "pyspark==$3"
rm -rf "$directory/tmp"

purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
site=$("$python" -c "$purelib")
{ "$venv/bin/python" -c "$purelib"; pwd; } >"$site/shared.pth"
# A broker that a test starts runs in this environment, too.
sed "1s|.*|#!$python|" "$venv/bin/twistd" >"$directory/env/bin/twistd"
chmod +x "$directory/env/bin/twistd"

if command -v mvn >/dev/null; then
    for artifact in "delta-spark_${3%.*}_2.13" delta-storage; do
        mvn -q -B dependency:copy "-Dartifact=io.delta:$artifact:$4" "-DoutputDirectory=$directory/jars"
    done
else
    echo "Maven is missing (Debian's package: maven): the tests of Delta Spark skip"
fi
touch "$directory/installed-$3-$4"
