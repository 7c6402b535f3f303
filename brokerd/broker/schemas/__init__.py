"""Schemas, kept in the journal."""
