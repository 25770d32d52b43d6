"""The verbs of `posthouse bus`."""

from __future__ import annotations

from posthouse.cli.bus.access import app as access
from posthouse.cli.bus.breakers import app as breakers
from posthouse.cli.bus.dead import app as dead
from posthouse.cli.bus.endpoints import app as endpoints
from posthouse.cli.bus.inbox import inbox
from posthouse.cli.bus.metrics import metrics
from posthouse.cli.bus.pub import pub
from posthouse.cli.bus.rebuild import rebuild
from posthouse.cli.bus.req import req
from posthouse.cli.bus.serve import serve
from posthouse.cli.bus.tap import tap
from posthouse.cli.bus.top import top
from posthouse.cli.commands import noun

app = noun("bus", "Publish, serve, watch and look after a message bus of this machine.")
app.command(pub, name="pub")
app.command(tap, name="tap")
app.command(serve, name="serve")
app.command(req, name="req")
app.command(inbox, name="inbox")
app.command(endpoints, name="endpoints")
app.command(access, name="access")
app.command(breakers, name="breakers")
app.command(dead, name="dead")
app.command(metrics, name="metrics")
app.command(rebuild, name="rebuild")
app.command(top, name="top")
