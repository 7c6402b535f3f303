"""The archive: what the log held, as Delta tables of Parquet files (docs/archive-format.rst).

Rooms, lowest first: contract <- storage <- parquet <- delta <- serve; journal <- ingest. The job
runs ingest, derive and maintain by way of cluster, which talks to Spark.

`brokerd.broker` imports the contract alone, which needs no library. The server hands it
`brokerd.archive.serve.lazy`, which loads pyarrow when there is an archive. Only the job needs
deltalake and pyspark.
"""
