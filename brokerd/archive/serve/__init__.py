"""Reads the archive for the broker: implements `brokerd.archive.contract.view`."""
