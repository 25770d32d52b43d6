"""Bringing the lake up to date: bronze from the sources, then every declared table."""

from posthouse.pipeline.run.run import RunReport, bring_up_to_date

__all__ = ["RunReport", "bring_up_to_date"]
