"""`posthouse topic`: create, subscribe to and list topics, through the daemon; `posthouse send '#topic'` posts to one.

While the relay cannot be reached, `list` shows the last list received.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.commands import note_new_name, noun
from posthouse.cli.completers import complete_topics
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.cli.send import NO_FLAGS, MessageFlags, Text, send


def create(
    topic: Annotated[str, Parameter(help="Name of the topic: a subject such as builds.main.")],
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Create a topic that members can post to and subscribe to.

    For example:

        posthouse topic create builds.main
    """
    with daemon_options.client() as daemon:
        answer = daemon.create_topic(topic.removeprefix("#"))
    output.result(answer, f"created {topic}")


def former_post(
    topic: str,
    message: Text,
    /,
    *,
    flags: MessageFlags = NO_FLAGS,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Post to a topic: the former name of `posthouse send '#TOPIC'`."""
    note_new_name("topic post TOPIC", "send '#TOPIC'", output)
    send(
        "#" + topic.removeprefix("#"),
        message,
        flags=flags,
        mesh=daemon_options.mesh,
        directory=daemon_options.directory,
        agent=daemon_options.agent,
        output=output,
    )


def subscribe(
    pattern: Annotated[str, Parameter(completer=complete_topics, help="A topic, or a pattern such as builds.>.")],
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Subscribe this host to topics: messages posted from now on arrive in its inbox.

    For example:

        posthouse topic subscribe 'builds.>'
    """
    with daemon_options.client() as daemon:
        answer = daemon.subscribe(pattern.removeprefix("#"))
    output.result(answer, f"subscribed to {pattern}")


def unsubscribe(
    pattern: Annotated[str, Parameter(completer=complete_topics, help="The pattern of the subscription.")],
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """End a subscription; messages that have arrived stay in the inbox.

    For example:

        posthouse topic unsubscribe 'builds.>'
    """
    with daemon_options.client() as daemon:
        answer = daemon.unsubscribe(pattern.removeprefix("#"))
    output.result(answer, f"unsubscribed from {pattern}")


def ls(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """List the topics of the mesh and the subscriptions of this host.

    For example:

        posthouse topic list
        posthouse topic list --mesh team --json
    """
    with daemon_options.client() as daemon:
        answer = daemon.topics()
    topics = [str(each) for each in answer.get("topics", [])]
    patterns = [str(each) for each in answer.get("subscriptions") or []]
    rows = [("topic", each) for each in topics] + [("subscription", each) for each in patterns]
    output.result(answer, table(("kind", "name"), rows))
    if answer.get("is_cached"):
        output.note("the relay cannot be reached: these are the last topics received, without subscriptions")


app = noun("topic", "Create topics and subscribe to them. `posthouse send '#TOPIC'` posts to one.")
app.command(create, name="create")
app.command(former_post, name="post", show=False)
app.command(subscribe, name="subscribe")
app.command(unsubscribe, name="unsubscribe")
app.command(ls, name="list")
app.command(ls, name="ls", show=False)  # as in the other groups
