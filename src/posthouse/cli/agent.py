"""`posthouse agent`: add, list, rename, retire and pause the agents of this host.

Every agent has its own inbox; mail to `claude@laptop` goes to the agent `claude` on the host `laptop`. A retired agent
accepts no mail and keeps its inbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.commands import noun
from posthouse.cli.completers import complete_agents
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions, parse_duration
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.client.daemon import Agent

Name = Annotated[
    str, Parameter(completer=complete_agents, help="Name of the agent: a-z, 0-9 and -, at most 32 characters.")
]


def add(
    name: Name,
    /,
    *,
    program: Annotated[str | None, Parameter(help="Program that the agent runs in, such as claude-code.")] = None,
    summary: Annotated[str | None, Parameter(help="What the agent works on, in one line.")] = None,
    capability: Annotated[
        tuple[str, ...], Parameter(negative=(), show_default=False, help="What others may ask it for. Repeatable.")
    ] = (),
    receipts: Annotated[
        bool | None,
        Parameter(negative="--no-receipts", help="Whether to send receipts to senders when the agent reads a message."),
    ] = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Add an agent with its own inbox, change its fields, or bring a retired agent back.

    For example:

        posthouse agent add claude --program claude-code
        posthouse agent add reviewer --capability review --summary "reviews changes"
    """
    with daemon_options.client() as daemon:
        agent = daemon.register(
            name,
            program=program,
            summary=summary,
            capabilities=list(capability) or None,
            receipts=receipts,
        )
    output.result(agent, f"{agent.name} takes mail")


def ls(
    *,
    all: Annotated[bool, Parameter(negative=(), show_default=False, help="Also list retired agents.")] = False,  # noqa: A002
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """List the agents of this host.

    For example:

        posthouse agent ls
        posthouse agent ls --all --json
    """
    with daemon_options.client() as daemon:
        agents = [agent for agent in daemon.agents() if all or agent.retired_at is None]
    rows = [
        (
            agent.name,
            agent.program or "",
            _state(agent),
            agent.unread,
            ", ".join(agent.capabilities),
            agent.summary or "",
        )
        for agent in agents
    ]
    output.result({"items": agents}, table(("name", "program", "state", "unread", "capabilities", "summary"), rows))


def rename(
    name: Name,
    to: Annotated[str, Parameter(help="The new name.")],
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Rename an agent: its mail moves with it; mail to the old name is refused, and the refusal names the new one.

    For example:

        posthouse agent rename claude-2 reviewer
    """
    with daemon_options.client() as daemon:
        agent = daemon.rename_agent(name, to)
    output.result(agent, f"{name} is now called {agent.name}")


def retire(
    name: Name,
    /,
    *,
    reason: Annotated[str | None, Parameter(help="Shown to senders whose mail is refused.")] = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Stop an agent from receiving mail; its inbox stays readable.

    For example:

        posthouse agent retire claude-2
        posthouse agent retire reviewer --reason "ask claude@build instead"
    """
    with daemon_options.client() as daemon:
        agent = daemon.retire_agent(name, reason)
    output.result(agent, f"{agent.name} no longer accepts mail: {agent.retired_reason}")


Names = Annotated[str, Parameter(completer=complete_agents, help="Names of the agents; by default the one you act as.")]
Program = Annotated[str | None, Parameter(help="All agents of this program; they usually share one usage limit.")]


def pause(
    *names: Names,
    program: Program = None,
    until: Annotated[str | None, Parameter(help="End of the pause: a time such as 2026-01-31T09:30:00Z.")] = None,
    for_: Annotated[str | None, Parameter(name="--for", help="Length of the pause: 90s, 15m, 2h, 1d.")] = None,
    reason: Annotated[str, Parameter(help="Shown to senders.")] = "",
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Hold the mail of agents until a given time: nothing wakes them, and senders see that they are paused.

    When the pause ends, the mail that waited arrives one message at a time.

    For example:

        posthouse agent pause claude --for 2h --reason "usage limit"
        posthouse agent pause --program claude-code --until 2026-01-31T06:00:00Z
    """
    from posthouse.model.clock import format_utc, system_clock
    from posthouse.model.limits import SECOND_NS

    if (until is None) == (for_ is None):
        raise error("usage", text="give either --until TIME or --for DURATION")
    if for_ is not None:
        until = format_utc(system_clock().wall_ns() + round(parse_duration(for_) * SECOND_NS))
    with daemon_options.client() as daemon:
        agents = daemon.pause_agents(*names, until=str(until), reason=reason, program=program)
    output.result({"items": agents}, "\n".join(f"{agent.name} is paused until {until}" for agent in agents))


def resume(
    *names: Names,
    program: Program = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """End the pauses of agents; the mail that waited arrives one message at a time.

    For example:

        posthouse agent resume claude
        posthouse agent resume --program claude-code
    """
    with daemon_options.client() as daemon:
        agents = daemon.resume_agents(*names, program=program)
    text = "\n".join(f"{agent.name} is no longer paused" for agent in agents) or "no agent was paused"
    output.result({"items": agents}, text)


def set_(
    name: Name,
    /,
    *,
    on_mail: Annotated[
        str, Parameter(help="Command that the daemon runs when mail arrives for the agent; an empty text removes it.")
    ],
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Set a command that the daemon runs when mail for an agent arrives, for programs that have no hooks.

    The command runs at most once every 30 seconds and for at most one minute, in your home directory, with
    POSTHOUSE_AGENT and POSTHOUSE_NEW (the number of new messages) in its environment. If it fails, it runs again later.

    For example:

        posthouse agent set reviewer --on-mail 'notify-send mail "$POSTHOUSE_AGENT"'
        posthouse agent set reviewer --on-mail ''
    """
    with daemon_options.client() as daemon:
        value = daemon.set_on_mail(name, on_mail or None)
    output.result(value, f"mail for {name} runs {on_mail}" if on_mail else f"mail for {name} runs no command")


def _state(agent: Agent) -> str:
    if agent.retired_at is not None:
        return f"retired: {agent.retired_reason}"
    if agent.paused is not None:
        return f"paused until {agent.paused.until}" + (f": {agent.paused.reason}" if agent.paused.reason else "")
    return f"running, {agent.status}" if agent.is_running else agent.status


app = noun("agent", "Add, list, rename, retire and pause the agents of this host; each has its own inbox.")
app.command(add, name="add")
app.command(ls, name="ls")
app.command(rename, name="rename")
app.command(retire, name="retire")
app.command(pause, name="pause")
app.command(resume, name="resume")
app.command(set_, name="set")
