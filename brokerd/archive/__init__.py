"""The archive: the content of the log as Delta tables of Parquet files (docs/archive-format.rst).

Rooms, lowest first: contract <- storage <- parquet <- delta <- serve; journal <- ingest. The job
runs ingest, derive and maintain through cluster, which talks to Spark.

`brokerd.broker` imports only the contract, which needs no library. The server gives the broker
`brokerd.archive.serve.lazy`, which loads pyarrow when an archive exists. Only the job needs
deltalake and pyspark.
"""
