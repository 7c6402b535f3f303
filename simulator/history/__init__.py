"""The history of a run: the requests of all clients and their answers, the input of the oracle."""
