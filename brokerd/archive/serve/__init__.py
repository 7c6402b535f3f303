"""The archive as the broker reads it: implements `brokerd.archive.contract.view`."""
