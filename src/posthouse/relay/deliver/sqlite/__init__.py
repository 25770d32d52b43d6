"""The tables of deliveries on SQLite."""

from posthouse.relay.deliver.sqlite.component import DELIVERIES
from posthouse.relay.deliver.sqlite.unit import SqliteDeliveries

__all__ = ["DELIVERIES", "SqliteDeliveries"]
