"""The verbs of `brokerctl` that ask a running broker, and ``config``: one module each."""
