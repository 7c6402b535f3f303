"""The FlyMQ wire format: docs/protocols/flymq.rst."""
