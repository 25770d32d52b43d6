"""Error codes of the client: reaching a relay, trusting it, and what it answers."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal, transient

CLIENT: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "lock_lost",
        409,
        "the lock {resource!r} (token {token}) was lost: {reason}",
        "What was done under it may be refused by its fence; acquire the lock again and begin anew.",
    ),
    transient(
        "relay_unreachable",
        503,
        "the relay at {relay} cannot be reached: {reason}",
        "Check that the relay runs (`posthouse relay up`) and that the address is right.",
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
        "{relay} would be spoken to without TLS, and it is not this machine",
        "Use https:// or wss://; only inside a network you trust allow plain connections.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "relay_certificate_refused",
        502,
        "the certificate of {relay} is refused: {reason}",
        "Give the certificate of its authority with --tls-ca, and use the host name it was made for.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "relay_key_changed",
        409,
        "the relay at {relay} shows the key {found}; {pinned} is expected",
        "Ask its administrator; if the change is meant, run `posthouse trust RELAY`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "member_key_changed",
        409,
        "{name} in mesh {mesh} has the key {found} now; {pinned} is expected",
        "Ask the member over another way; if the change is meant, run `posthouse trust NAME --mesh MESH`.",
        exit=Exit.IDENTITY,
    ),
    ErrorSpec(
        "member_name_unknown",
        404,
        "there is no member {name!r} in mesh {mesh}",
        "`posthouse mesh members` lists them; a node id can be given instead.",
    ),
    ErrorSpec(
        "pins_malformed",
        500,
        "{path} cannot be used: {reason}",
        "Restore it from a copy, or move it away; every relay and member is then new to this node.",
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
        "another connection of this node has opened its mailbox in mesh {mesh}",
        "One process reads a node's mailbox: end the other one, or give this one a key of its own.",
        exit=Exit.IDENTITY,
    ),
    transient(
        "answer_missing",
        504,
        "the relay did not answer within {seconds} s; the event {id} may have been stored",
        "Send the same signed event again: if it is there already, the answer says so.",
    ),
    fatal(
        "answer_invalid",
        502,
        "the relay at {relay} answered what cannot be: {reason}",
        "Check that the address is one of a posthouse relay, of a version that fits.",
    ),
    ErrorSpec(
        "client_closed",
        409,
        "this client is closed",
        "Make a new Client.",
    ),
    transient(
        "daemon_unreachable",
        503,
        "the daemon at {daemon} cannot be reached: {reason}",
        "Start it with `posthouse daemon up`; `posthouse daemon status` tells how it is.",
    ),
    fatal(
        "daemon_answer_invalid",
        502,
        "the daemon at {daemon} answered what cannot be: {reason}",
        "Check that daemon and client have versions that fit: `posthouse daemon version`.",
    ),
)
