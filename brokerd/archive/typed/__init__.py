"""Decodes values by the registered schemas of their topic, and keeps typed tables."""
