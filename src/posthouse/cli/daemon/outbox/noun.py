"""The verbs of `posthouse daemon outbox`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.daemon.outbox.drop import drop
from posthouse.cli.daemon.outbox.inspect import inspect
from posthouse.cli.daemon.outbox.ls import ls
from posthouse.cli.daemon.outbox.requeue import requeue

app = noun("outbox", "Look at what was sent from this host, send it anew or give it up.")
app.command(ls, name="list")
app.command(inspect, name="inspect")
app.command(requeue, name="requeue")
app.command(drop, name="drop")
