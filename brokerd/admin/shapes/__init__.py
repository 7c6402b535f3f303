"""Request and response types of the JSON API."""
