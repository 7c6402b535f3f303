"""A reference data directory, and checks of a directory whose bytes were flipped."""
