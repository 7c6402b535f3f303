"""The Mamamia (MAB) wire format: docs/protocols/mamamia.rst."""
