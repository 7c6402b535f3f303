"""The command line tool `brokerctl`."""
