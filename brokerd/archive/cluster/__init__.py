"""Spark: sessions, masters, data frames over files, code for executors."""
