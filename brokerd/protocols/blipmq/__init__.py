"""The BlipMQ wire format: docs/protocols/blipmq.rst."""
