"""The tables of the lake: declarations with pure functions over DataFrames."""

from posthouse.pipeline.tables.registry import BY_NAME, TABLES
from posthouse.pipeline.tables.table import BRONZE, LOST, Table, Upkeep

__all__ = ["BRONZE", "BY_NAME", "LOST", "TABLES", "Table", "Upkeep"]
