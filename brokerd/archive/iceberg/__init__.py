"""Iceberg metadata over the files of the archive's Delta tables (docs/catalogs.rst).

Needs the extra ``iceberg``. The job writes it, if the option ``archive.iceberg`` is set.
"""
