"""The index of a bus: which messages there are, by subject, endpoint and status; derived, rebuildable."""

from posthouse.bus.index.store import Index

__all__ = ["Index"]
