"""The verbs of `posthouse relay`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.relay.up import up

app = noun("relay", "Run a relay, and look after its store.")
app.command(up, name="up")
