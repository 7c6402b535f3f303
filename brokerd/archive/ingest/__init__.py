"""Sealed segments into the tables ``records`` and ``events``."""
