"""Files of an archive: in a local directory or in a bucket."""
