"""The command line tool `brokerctl`: one module for each verb."""
