"""The MEGA wire format: docs/protocols/mega.rst."""
