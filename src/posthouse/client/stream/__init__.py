"""The stream of a client: one lasting link, its publishes and its subscriptions."""
