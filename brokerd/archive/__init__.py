"""The archive: what the log held, as Delta tables of Parquet files (docs/archive-format.rst).

`brokerd.broker` imports modules that need no library: what an archive is to it
(`brokerd.archive.view`) and what it tells the job (`brokerd.archive.bounds`). It is given
`brokerd.archive.lazy`, which opens `brokerd.archive.readback` when there is an archive: that needs
pyarrow. Only the job, which fills the archive, needs deltalake and pyspark.
"""
