"""The verbs of `posthouse daemon`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.daemon.accept_host import accept_host
from posthouse.cli.daemon.down import down
from posthouse.cli.daemon.install_service import install_service
from posthouse.cli.daemon.logs import logs
from posthouse.cli.daemon.outbox import app as outbox
from posthouse.cli.daemon.recover import recover
from posthouse.cli.daemon.remint import remint
from posthouse.cli.daemon.status import status
from posthouse.cli.daemon.uninstall_service import uninstall_service
from posthouse.cli.daemon.up import up
from posthouse.cli.daemon.version import version

app = noun("daemon", "Run the daemon of this host: outbox, inbox and a local interface for programs.")
app.command(up, name="up")
app.command(down, name="down")
app.command(status, name="status")
app.command(version, name="version")
app.command(logs, name="logs")
app.command(accept_host, name="accept-host")
app.command(remint, name="remint")
app.command(recover, name="recover")
app.command(install_service, name="install-service")
app.command(uninstall_service, name="uninstall-service")
app.command(outbox, name="outbox")
