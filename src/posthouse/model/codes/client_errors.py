"""Error codes of the client: connections to relay and daemon, trust in keys, and invalid answers."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

CLIENT: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "lock_lost",
        409,
        "the lock {resource!r} (token {token}) was lost: {reason}",
        "A fence may refuse writes made under it. Acquire the lock again and repeat the work.",
    ),
    transient(
        "relay_unreachable",
        503,
        "the relay at {relay} cannot be reached: {reason}",
        "Check that the address is right and that the relay runs: `posthouse up` on its host starts it.",
    ),
    ErrorSpec(
        "relay_url_invalid",
        400,
        "{url!r} is not the address of a relay: {reason}",
        "Give HOST:PORT, or a URL such as https://relay.example:7420 or ws://127.0.0.1:7420.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "relay_plain",
        400,
        "the connection to {relay} would leave this machine without TLS",
        "Use https:// or wss://; allow plain connections only inside a network you trust.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "relay_certificate_refused",
        502,
        "the TLS certificate of {relay} is not trusted: {reason}",
        "Give the certificate of its authority with --tls-ca, and use the host name of the certificate.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "relay_key_changed",
        409,
        "the relay at {relay} has the key {found}; {pinned} is expected",
        "Ask its administrator; if the change is intended, run `posthouse trust RELAY`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "member_key_changed",
        409,
        "{name} in mesh {mesh} now has the key {found}; {pinned} is expected",
        "Ask the member over another channel; if the change is intended, run `posthouse trust NAME --mesh MESH`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "member_name_unknown",
        404,
        "there is no host or agent {name!r} in mesh {mesh}",
        "`posthouse peers` lists the hosts and their agents; a node id works too.",
    ),
    ErrorSpec(
        "pins_malformed",
        500,
        "{path} cannot be used: {reason}",
        "Restore it from a copy, or move it away: this node then trusts every relay and member as new.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "invite_malformed",
        400,
        "this is not an invite: {reason}",
        "An invite is posthouse://HOST:PORT/MESH?relay=NODE_ID&code=CODE, in quotes on a command line.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "mailbox_replaced",
        409,
        "another connection of this node opened its mailbox in mesh {mesh}",
        "One process reads the mailbox of a node: stop the other process, or give this one its own key.",
        exit=Exit.IDENTITY,
    ),
    transient(
        "answer_missing",
        504,
        "the relay did not answer within {seconds} s; the event {id} may have been stored",
        "Send the same signed event again: the answer says if the relay already has it.",
    ),
    transient(
        "clock_differs",
        503,
        "this clock differs by {seconds} s from the clock of the relay at {relay}, which therefore refuses the login",
        "Set the clock of this machine, for example with `timedatectl set-ntp true`. Nothing is lost meanwhile.",
    ),
    fatal(
        "answer_invalid",
        502,
        "the relay at {relay} sent an invalid answer: {reason}",
        "Check that the address is a posthouse relay of a compatible version.",
    ),
    ErrorSpec(
        "client_closed",
        409,
        "this client is closed",
        "Create a new Client.",
    ),
    transient(
        "daemon_unreachable",
        503,
        "the daemon at {daemon} cannot be reached: {reason}",
        "Start it with `posthouse up`, in a directory of its own with `posthouse daemon up --dir DIR`; "
        "`posthouse status` shows what runs.",
    ),
    fatal(
        "daemon_answer_invalid",
        502,
        "the daemon at {daemon} sent an invalid answer: {reason}",
        "Check that daemon and client have compatible versions: `posthouse daemon version`.",
    ),
)
