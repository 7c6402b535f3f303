"""The service: configuration, listeners, TLS, logs, start and stop."""
