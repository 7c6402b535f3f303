"""The archive: what the log held, as Delta tables of Parquet files (docs/archive-format.rst).

`brokerd.broker` imports modules that need no library: what an archive is to it
(`brokerd.archive.contract.view`) and what it tells the job (`brokerd.archive.contract.bounds`). It
is given `brokerd.archive.serve.lazy`, which opens `brokerd.archive.serve.delta_archive` when there
is an archive: that needs pyarrow. Only the job, which fills the archive, needs deltalake and
pyspark.
"""
