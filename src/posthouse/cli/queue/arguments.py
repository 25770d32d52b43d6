"""Arguments that the verbs of `posthouse queue` share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

#: The reader whose queue it is, given first.
Recipient = Annotated[str, Parameter(help="The reader: a member's name, a node id, or a Pinch address.")]

#: Messages of a queue, by id.
MessageIds = Annotated[
    tuple[str, ...],
    Parameter(name="--id", negative=(), show_default=False, help="This message only. Several times."),
]
