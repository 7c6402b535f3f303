"""brokerd: five wire formats over one durable log."""
