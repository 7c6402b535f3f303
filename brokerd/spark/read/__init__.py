"""Execute a query: read the planned parts as rows."""
