"""Spark sessions: the Java they run on, their settings, and the posthouse package on their workers."""

from posthouse.pipeline.session.spark import spark_session

__all__ = ["spark_session"]
