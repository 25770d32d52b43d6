"""`posthouse trace`."""

from posthouse.cli.trace.command import trace

__all__ = ["trace"]
