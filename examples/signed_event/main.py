"""A signed event: every node can verify who wrote it, and only its reader can open it.

Run it with `python examples/signed_event/main.py`. It uses fresh keys and touches no file.
"""

from __future__ import annotations

import sys

from posthouse import Event, NodeKey, Refused
from posthouse.keys import open_sealed, seal, sign_native, verify
from posthouse.model.clock import system_clock
from posthouse.model.event import MESSAGE, canonical_event_bytes, check_structure, event_id


def write_event(author: NodeKey, reader: str, text: str) -> Event:
    """Return a message that only `reader` can open, signed by `author`."""
    enc, content = seal(author, [reader], text.encode())
    now_ns = system_clock().wall_ns()
    tags = (("p", reader), ("enc", enc))
    canonical = canonical_event_bytes(author.node, now_ns, MESSAGE, tags, content)
    return Event(
        id=event_id(canonical),
        pubkey=author.node,
        created_at_ns=now_ns,
        kind=MESSAGE,
        tags=tags,
        content=content,
        sig=sign_native(author, canonical),
    )


def read_event(reader: NodeKey, event: Event) -> str:
    """Return the text of an event after verifying id and signature."""
    verify(event.pubkey, check_structure(event), event.sig)
    return open_sealed(reader, event.pubkey, event.value("enc") or "", event.content).decode()


def main() -> None:
    alice, bob = NodeKey.generate(), NodeKey.generate()
    event = write_event(alice, bob.node, "The build is green.")
    say(f"alice is {alice.node}")
    say(f"event    {event.id}")
    say(f"content  {event.content[:40]}... (sealed)")
    say(f"bob read {read_event(bob, event)!r}")
    try:
        verify(bob.node, event.canonical(), event.sig)
    except Refused as refused:
        say(f"forged   {refused.code}: {refused}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
