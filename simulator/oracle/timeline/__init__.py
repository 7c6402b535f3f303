"""Times and identities of events: bounds in time, lives of a topic, resends, transactions."""
