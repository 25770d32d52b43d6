"""The verbs of `posthouse lock`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.lock.acquire import acquire
from posthouse.cli.lock.inspect import inspect
from posthouse.cli.lock.ls import ls
from posthouse.cli.lock.release import release
from posthouse.cli.lock.renew import renew
from posthouse.cli.lock.run import run

app = noun("lock", "Hold locks of a relay: leases with fencing tokens.")
app.command(acquire, name="acquire")
app.command(renew, name="renew")
app.command(release, name="release")
app.command(inspect, name="inspect")
app.command(ls, name="ls")
app.command(run, name="run")
