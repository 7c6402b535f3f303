"""The broker's side of an archive: reading it, pinning it, bounds, administration."""
