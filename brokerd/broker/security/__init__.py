"""Accounts, access lists and the audit trail, kept in the journal."""
