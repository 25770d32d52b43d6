"""`posthouse inbox` and its verbs."""

from __future__ import annotations

from inspect import cleandoc

from posthouse.cli.commands import noun
from posthouse.cli.inbox.mail import mail
from posthouse.cli.inbox.seen import seen
from posthouse.cli.inbox.show import show
from posthouse.cli.inbox.wait import wait

app = noun("inbox", cleandoc(mail.__doc__ or ""))
app.default(mail)
app.command(wait, name="wait")
app.command(show, name="show")
app.command(seen, name="seen")
