"""A process that writes a stream of a log to Parquet files until it has read the whole log.

``python -m tests.spark.streamer DATA_DIR OUTPUT CHECKPOINT WORK``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from brokerd.archive.cluster.session import SparkOptions, spark_session
from brokerd.spark import register

MOST_BYTES = 80_000
"""Bytes of the journal in a micro-batch; small, so that several batches can be killed."""


def main(data_dir: str, output: str, checkpoint: str, work: str) -> None:
    options = SparkOptions("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    with spark_session("streamer", options, Path(work), os.environ) as spark:
        register(spark)
        stream = spark.readStream.format("brokerd").option("maxBytesPerTrigger", MOST_BYTES)
        columns = stream.load(data_dir).select("topic", "partition", "offset", "key", "value")
        query = (
            columns.writeStream.format("parquet")
            .option("path", output)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:  # its text needs the Java that ends with the block
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
