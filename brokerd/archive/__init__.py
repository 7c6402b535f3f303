"""The archive: what the log held, as Delta tables of Parquet files (docs/archive-format.rst).

The broker imports `brokerd.archive.view` and `brokerd.archive.bounds` only, which need no library;
who opens an archive gets `brokerd.archive.table`, which needs pyarrow and deltalake.
"""
