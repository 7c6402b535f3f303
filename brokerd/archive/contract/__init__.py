"""The contract of broker and job: tables, bounds, pin, pairing, the archive's interface."""
