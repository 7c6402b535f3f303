# Tests: tests/schemas
"""Schemas: validation of definitions and messages, and compatibility of versions.

docs/schemas.rst is the contract. All modules are pure, except `checker`, which runs `checks` in
processes of their own.
"""
