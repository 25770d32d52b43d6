"""The verbs of `posthouse message`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.message.receive import receive
from posthouse.cli.message.send import send
from posthouse.cli.message.show import show

app = noun("message", "Send messages straight to a relay, receive them, and see where they are.")
app.command(send, name="send")
app.command(receive, name="receive")
app.command(show, name="show")
