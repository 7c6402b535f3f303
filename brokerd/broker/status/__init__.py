"""Views of the broker: counters, group positions, known damage."""
