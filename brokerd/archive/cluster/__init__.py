"""Spark for the job: sessions, masters, data frames over files, code for executors."""
