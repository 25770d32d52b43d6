"""Webhooks: committed events go to URLs, and requests from outside become messages."""
