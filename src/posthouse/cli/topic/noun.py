"""The verbs of `posthouse topic`."""

from __future__ import annotations

from posthouse.cli.commands import noun
from posthouse.cli.topic.create import create
from posthouse.cli.topic.ls import ls
from posthouse.cli.topic.post import post
from posthouse.cli.topic.subscribe import subscribe
from posthouse.cli.topic.unsubscribe import unsubscribe

app = noun("topic", "Make topics, post to them and subscribe, through the daemon.")
app.command(create, name="create")
app.command(post, name="post")
app.command(subscribe, name="subscribe")
app.command(unsubscribe, name="unsubscribe")
app.command(ls, name="list")
