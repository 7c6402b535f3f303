# Tests: tests/schemas
"""Schemas: whether a definition is one, what it allows, and whether two versions fit together.

docs/schemas.rst is the contract. Pure, but for `checker`, which runs all of it in processes of
their own: nothing here knows the broker, and the broker runs nothing of `checks` in its own.
"""
