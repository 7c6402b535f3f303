"""Plan a query: which files of the archive and which pieces of the journal it reads."""
