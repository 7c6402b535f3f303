"""A process that writes a stream of lines to a broker until it has written all of them.

``python -m tests.spark.sinker INPUT CHECKPOINT SERVER PARTITIONS WORK``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException

from brokerd.archive.cluster.session import SparkOptions, spark_session
from brokerd.spark import register

FILES = 4
"""Files of lines in a micro-batch; few, so that several micro-batches can be killed."""


def main(lines: str, checkpoint: str, server: str, partitions: str, work: str) -> None:
    options = SparkOptions("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    with spark_session("sinker", options, Path(work), os.environ) as spark:
        register(spark)
        stream = spark.readStream.format("text").option("maxFilesPerTrigger", FILES).load(lines)
        query = (
            stream.selectExpr(
                "split_part(value, ' ', 1) AS key",
                "value",
                "concat('t', length(value) % 3) AS topic",
            )
            .repartition(int(partitions))
            .writeStream.format("brokerd")
            .options(server=server, batchRecords=20, inFlight=2)
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
