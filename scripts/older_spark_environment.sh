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

if ! test -e "$directory/spark-$3"; then
    rm -rf "$directory"/env "$directory"/fetched "$directory"/spark-*
    "$venv/bin/python" -m venv --without-pip "$directory/env"
    python=$directory/env/bin/python
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    site=$("$python" -c "$purelib")
    # pip would pack all jars into a wheel and unpack them again, which takes most of the time of an installation.
    mkdir "$directory/fetched"
    echo "fetching pyspark $3 into $2 (460 MB)"
    TMPDIR=$directory/fetched "$venv/bin/python" -m pip download --quiet --no-cache-dir --no-deps \
        --no-binary pyspark --dest "$directory/fetched" "pyspark==$3"
    tar xzf "$directory/fetched/pyspark-$3.tar.gz" -C "$directory/fetched"
    source=$directory/fetched/pyspark-$3
    mv "$source/deps/jars" "$source/deps/bin" "$source/pyspark/"
    mv "$source/pyspark" "$site/"
    rm -rf "$directory/fetched"

    { "$venv/bin/python" -c "$purelib"; pwd; } >"$site/shared.pth"
    # A broker that a test starts runs in this environment, too.
    sed "1s|.*|#!$python|" "$venv/bin/twistd" >"$directory/env/bin/twistd"
    chmod +x "$directory/env/bin/twistd"
    "$python" -c "import pyspark; assert pyspark.__version__ == '$3', pyspark.__version__"
    touch "$directory/spark-$3"
fi

if ! test -e "$directory/delta-$4"; then
    rm -rf "$directory"/jars "$directory"/delta-*
    if command -v mvn >/dev/null; then
        for artifact in "delta-spark_${3%.*}_2.13" delta-storage; do
            mvn -q -B dependency:copy "-Dartifact=io.delta:$artifact:$4" "-DoutputDirectory=$directory/jars"
        done
        touch "$directory/delta-$4"
    else
        echo "Maven is missing (Debian's package: maven): the tests of Delta Spark skip"
    fi
fi
