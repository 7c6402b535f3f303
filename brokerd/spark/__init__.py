"""The log as a source of Apache Spark: docs/spark.rst."""
