"""Plans a query: takes a snapshot of the log and divides it into splits."""
