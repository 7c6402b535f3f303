"""HTTP requests of the admin site: arrival, authentication, routing, resources."""
