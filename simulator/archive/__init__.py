"""A simulated archive, and the job that fills it."""
