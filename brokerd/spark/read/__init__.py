"""Reads the splits of a plan as rows."""
