"""Where an archive lies: a local directory or a bucket."""
