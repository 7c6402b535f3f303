"""What broker and rollup tell each other: tables, bounds, pins, pairing."""
