"""Locks under load: one client, many on their own resources, many on one, against bare commits."""
