"""Somebody who only looks on: told when a connection is up, lost, or will never be there again."""

from __future__ import annotations

from collections.abc import Callable

from posthouse.model.errors import PosthouseError


class Observer:
    """Takes part in a link without saying anything."""

    def __init__(self, on_up: Callable[[], None], on_lost: Callable[[int | None, str], None]) -> None:
        self._on_up = on_up
        #: is told the code and the words with which the relay ended a connection, if it did
        self.take_lost = on_lost

    def resume(self) -> None:
        """Tell that a connection is up."""
        self._on_up()

    def fail(self, failure: PosthouseError) -> None:
        """Nothing is open here."""
