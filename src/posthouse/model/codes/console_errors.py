"""Error codes of the console: its links and tokens, and its own server."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, transient

CONSOLE: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "console_link_invalid",
        403,
        "the link was already used, or is older than {seconds} s",
        "Press Enter where `posthouse console` runs: it prints a new link.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "console_token_missing",
        401,
        "this page needs the token of the console",
        "Open the link that `posthouse console` prints.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "console_token_wrong",
        401,
        "the token does not belong to this console",
        "The console was restarted: open the link that it prints.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "console_peer_refused",
        403,
        "the connection comes from another user of this machine",
        "Run `posthouse console` yourself: each user has one, with the rights of their own key.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "console_form_invalid",
        400,
        "the form is incomplete: {reason}",
        "Load the page again and repeat the action.",
    ),
    transient(
        "console_busy", 503, "the console is already answering {limit} requests", "Close other tabs, or try again."
    ),
    transient("console_stopping", 503, "the console is stopping", "Start it again: `posthouse console`."),
)
