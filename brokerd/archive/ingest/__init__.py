"""Copies sealed segments into the tables ``records`` and ``events``."""
