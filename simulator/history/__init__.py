"""What the clients of a run asked and saw: all that the oracle knows."""
