"""``brokerctl bench``: the load generator, its wire formats and its figures."""
