"""A made-up history, written by the real product."""

from posthouse.pipeline.demo.history import History, make_history

__all__ = ["History", "make_history"]
