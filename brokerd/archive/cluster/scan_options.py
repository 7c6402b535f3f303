# Tests: tests/archive/test_local_frames.py, tests/spark/test_log_frame.py
"""Options of Spark's own Parquet reader.

They override settings of a session or of ``spark-defaults.conf`` that would lose rows, change
times, or accept damaged pages.
"""

SCAN_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
