"""Reads, writes and verifies the Parquet files of an archive."""
