"""Hypothesis strategies for the values of the model."""

from __future__ import annotations

from hypothesis import strategies as st

from posthouse.model.event import Event, Tag, canonical_event_bytes, event_id

#: few and short tokens, so that random subjects and patterns meet often
TOKENS = st.sampled_from(["a", "b", "c", "A", "a-1", "_"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=5).map(".".join)
NODES = st.sampled_from([f"ed25519:{digit * 64}" for digit in "0123456789abcdef"])
#: any text that has a UTF-8 form, control characters and astral ones included
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TAGS = st.lists(
    st.lists(TEXTS, min_size=1, max_size=3).map(lambda values: ("x" + values[0], *values[1:])), max_size=4
).map(tuple)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(st.one_of(TOKENS, st.just("*")), min_size=0, max_size=4))
    if not tokens or draw(st.booleans()):
        tokens.append(">")
    return ".".join(tokens)


def make_event(
    pubkey: str = "ed25519:" + "a" * 64,
    created_at_ns: int = 1_700_000_000_000_000_000,
    kind: int = 1,
    tags: tuple[Tag, ...] = (),
    content: str = "",
    sig: str = "0" * 128,
) -> Event:
    """Return an event with its right id; the signature has the form only."""
    canonical = canonical_event_bytes(pubkey, created_at_ns, kind, tags, content)
    return Event(
        id=event_id(canonical),
        pubkey=pubkey,
        created_at_ns=created_at_ns,
        kind=kind,
        tags=tags,
        content=content,
        sig=sig,
    )
