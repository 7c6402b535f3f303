"""Plan a query: take a snapshot of the log and divide it into splits."""
