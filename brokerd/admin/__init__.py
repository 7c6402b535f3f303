"""The admin HTTP site: health, metrics, status as JSON, and a page."""
