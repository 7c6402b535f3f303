"""Parquet files of an archive: writer, verification, reader."""
