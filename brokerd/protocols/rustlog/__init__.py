"""The RustLog wire format, both dialects: docs/protocols/rustlog.rst."""
