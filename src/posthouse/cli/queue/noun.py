"""The verbs of `posthouse queue`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.queue.dead import dead
from posthouse.cli.queue.ls import ls
from posthouse.cli.queue.purge import purge
from posthouse.cli.queue.requeue import requeue
from posthouse.cli.queue.show import show

app = noun("queue", "What waits for whom in a mesh, for its admins.")
app.command(ls, name="ls")
app.command(show, name="show")
app.command(dead, name="dead")
app.command(purge, name="purge")
app.command(requeue, name="requeue")
