"""Parquet files of an archive: writing, verifying, reading."""
