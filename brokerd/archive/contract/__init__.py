"""The contract between broker and job: tables, bounds, pin, pairing, interface of an archive."""
