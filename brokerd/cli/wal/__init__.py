"""``brokerctl wal``: verify, dump and repair a write-ahead log."""
