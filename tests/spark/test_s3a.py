"""`brokerd.spark.log` of a bucket by Spark's own reader, with the jars of ``s3a`` from Maven."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.archive.storage.address import ObjectAddress
from tests.spark.logs import Log

pytestmark = pytest.mark.slow

SDK = "2.35.4"
"""The version of Amazon's SDK. Two of its parts are enough; hadoop-aws itself names its bundle."""
_POM = """<project>
<modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>
  <dependency>
    <groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId>
    <version>{hadoop}</version>
    <exclusions>
      <exclusion><groupId>software.amazon.awssdk</groupId><artifactId>bundle</artifactId></exclusion>
    </exclusions>
  </dependency>
  <dependency>
    <groupId>software.amazon.awssdk</groupId><artifactId>s3-transfer-manager</artifactId>
    <version>{sdk}</version>
  </dependency>
  <dependency>
    <groupId>software.amazon.awssdk</groupId><artifactId>sts</artifactId><version>{sdk}</version>
  </dependency>
</dependencies>
</project>
"""
_QUERY = """
import json, os, sys
from pyspark.sql import SparkSession
import brokerd.spark

place, archive, jars = sys.argv[1:]
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.jars", jars)
    .config("spark.hadoop.fs.s3a.endpoint", os.environ["AWS_ENDPOINT_URL"])
    .config("spark.hadoop.fs.s3a.endpoint.region", os.environ["AWS_REGION"])
    .config("spark.hadoop.fs.s3a.path.style.access", "true")
    .config("spark.hadoop.fs.s3a.connection.ssl.enabled", "false")
    .getOrCreate()
)
frame = brokerd.spark.log(session, place, archive=archive, bucketScheme="s3a")
by_python = brokerd.spark.log(session, place, archive=archive)
texts = brokerd.spark.log(session, place, archive=archive, bucketScheme="s3a", payload="json")
found = {
    "files": sorted(frame.inputFiles()),
    "rows": sorted(map(repr, frame.collect())),
    "rows by Python": sorted(map(repr, by_python.collect())),
    "of one": sorted(bytes(row.value).decode() for row in frame.where("topic = 'one'").collect()),
    "texts": sorted(row.value for row in texts.collect()),
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the jars of ``s3a`` for this Spark."""
    pyspark = pytest.importorskip("pyspark")
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("Maven is not installed")
    (api,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    hadoop = api.stem.removeprefix("hadoop-client-api-")
    directory = tmp_path_factory.mktemp("s3a")
    (directory / "pom.xml").write_text(_POM.format(hadoop=hadoop, sdk=SDK))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Maven cannot fetch hadoop-aws {hadoop}: {done.stdout[-500:]}")
    return [str(path) for path in (directory / "jars").iterdir() if "slf4j" not in path.name]


def test_a_bucket_is_read_by_sparks_own_reader(
    tmp_path: Path, bucket: ObjectAddress, jars: list[str]
) -> None:
    """The archive by scans, the journal by Python; the rows are those that Python reads."""
    log = Log(tmp_path / "data", bucket)
    for name in ("one", "two"):
        log.append(log.create(name), 0, f"a of {name}".encode(), f"b of {name}".encode())
    log.seal()
    log.publish()
    log.roll_up()
    log.delete_archived()
    log.append(1, 0, b"c of one")
    log.publish()
    command = [sys.executable, "-c", _QUERY, str(log.path), str(bucket), ",".join(jars)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["files"]) == 2
    assert all(path.startswith(f"s3a://{bucket.bucket}/") for path in found["files"])
    assert len(found["rows"]) == 5 and found["rows"] == found["rows by Python"]
    assert found["of one"] == ["a of one", "b of one", "c of one"]
    assert found["texts"] == ["a of one", "a of two", "b of one", "b of two", "c of one"]
