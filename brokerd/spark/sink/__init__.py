# Tests: tests/spark/test_sink_commit.py
"""The sink of the format ``brokerd``: writes rows of Spark to a broker. Page: docs/spark-sink.rst.

`options` and `columns` check what the user gives. `blocks` packs rows into batches of bounded size.
`staging` keeps the rows of a micro-batch in files until the broker has them. `sender` sends batches
so that a repeated one is recognised. `commit` joins both. `writer` is what Spark calls.
"""
