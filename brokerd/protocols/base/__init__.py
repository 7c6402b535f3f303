"""Parts that the Protocols of several wire formats share."""
