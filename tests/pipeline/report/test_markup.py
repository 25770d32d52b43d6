"""Text becomes markup in one way only."""

from __future__ import annotations

import html
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from posthouse.pipeline.report.markup import element, text


class Seen(HTMLParser):
    """Collects what a reader of the markup sees."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.words = ""
        self.values: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


@given(st.text(max_size=60))
def test_any_text_is_seen_as_text_and_makes_no_element(words: str) -> None:
    seen = Seen()
    seen.feed(element("p", text(words), title=words))
    seen.close()
    assert seen.tags == ["p"]
    assert seen.words == html.unescape(text(words))
    assert seen.values == [html.unescape(text(words))]


def test_characters_that_steer_terminals_or_turn_text_become_spaces() -> None:
    assert text("a\x00\x1b[31mb\u202ec\u2066") == "a  [31mb c "


def test_attributes_that_are_none_are_left_out_and_numbers_are_short() -> None:
    assert element("rect", x=1.23456, y=2.0, class_=None) == '<rect x="1.23" y="2"/>'
