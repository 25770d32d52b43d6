"""The lake and everything computed from it, on Spark; `register` makes format("posthouse") work in any session."""

from posthouse.pipeline.session.spark import register

__all__ = ["register"]
