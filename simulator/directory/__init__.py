"""A reference data directory, and checks of one whose bytes were flipped."""
