"""The verbs of `posthouse relay`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.relay.backup import backup
from posthouse.cli.relay.check import check
from posthouse.cli.relay.info import info
from posthouse.cli.relay.reindex import reindex
from posthouse.cli.relay.restore import restore
from posthouse.cli.relay.up import up
from posthouse.cli.relay.verify import verify

app = noun("relay", "Run a relay, and look after its store.")
app.command(up, name="up")
app.command(info, name="info")
app.command(backup, name="backup")
app.command(verify, name="verify")
app.command(restore, name="restore")
app.command(reindex, name="reindex")
app.command(check, name="check")
