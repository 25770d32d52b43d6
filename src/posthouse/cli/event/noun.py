"""The verbs of `posthouse event`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.event.address import address
from posthouse.cli.event.get import get
from posthouse.cli.event.publish import publish
from posthouse.cli.event.query import query
from posthouse.cli.event.tail import tail

app = noun("event", "Publish signed events to a relay, read them and follow them.")
app.command(publish, name="publish")
app.command(get, name="get")
app.command(query, name="query")
app.command(tail, name="tail")
app.command(address, name="address")
