"""One Twisted Protocol and Factory for each wire format."""
