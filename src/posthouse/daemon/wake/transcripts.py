"""The tokens that a coding agent's model used, read from its program's transcript and reported with its messages.

Claude Code writes a file of JSON lines for each session and names it to its hooks. An answer of the model is several
lines with one id, each with the usage known so far, so the last line of an id counts. `input_tokens` there leaves out
tokens that were read from or written to a cache; here it includes both. Counting starts where the file ends when a hook
first names it: earlier usage belongs to messages that were sent before. The text of a transcript is neither kept nor
logged.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from posthouse.model.limits import MIB

PROGRAM = "claude-code"
_READ_MAX_BYTES = 64 * MIB  # per message; the next one reads on
_KNOWN_IDS = 64  # lines of one answer follow each other
_NO_MODEL = "<synthetic>"  # of lines that the program wrote itself, such as errors


class Tokens(NamedTuple):
    """Counts of tokens; `input` includes `cached`."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def plus(self, other: Tokens, sign: int = 1) -> Tokens:
        """Return the sum, or with sign -1 the difference."""
        return Tokens(*(mine + sign * given for mine, given in zip(self, other, strict=True)))


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0

    def tokens(self) -> Tokens:
        read = self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens
        return Tokens(read, self.output_tokens, self.cache_read_input_tokens)


class _Message(msgspec.Struct):
    model: str
    usage: _Usage
    id: str = ""


class _Line(msgspec.Struct):
    message: _Message


_decode = msgspec.json.Decoder(_Line).decode


class Transcript:
    """The transcript of one session."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = self._size()
        self._known: OrderedDict[str, Tokens] = OrderedDict()
        #: usage by model that no message has reported yet
        self._unreported: dict[str, Tokens] = {}

    def take(self) -> dict[str, Any] | None:
        """Return the usage of the model with most tokens since the last call, as a message reports it; None if none.

        The tokens of other models wait for the next message, because a message reports one model. Reads the file.
        """
        self._read()
        model = max(self._unreported, key=lambda name: sum(self._unreported[name]), default=None)
        if model is None:
            return None
        tokens = self._unreported.pop(model)
        return {"model": model, **{f"{name}_tokens": count for name, count in tokens._asdict().items()}}

    def give_back(self, usage: dict[str, Any]) -> None:
        """Count usage again that `take` returned and that no message has reported."""
        self._add(usage["model"], Tokens(*(usage[f"{name}_tokens"] for name in Tokens._fields)))

    def _size(self) -> int:
        try:
            return Path(self.path).stat().st_size
        except OSError:
            return 0

    def _read(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # must not wait if it is a pipe
        except OSError:
            return
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            data = os.pread(fd, _READ_MAX_BYTES, self._offset)
        finally:
            os.close(fd)
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            if b'"usage"' in line:
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            message = _decode(line).message
        except msgspec.MsgspecError:
            return  # another kind of line, or another version of the program
        if message.model == _NO_MODEL:
            return
        tokens = message.usage.tokens()
        self._add(message.model, tokens.plus(self._known.get(message.id, Tokens()), -1))
        if message.id:
            self._known[message.id] = tokens
            self._known.move_to_end(message.id)
            if len(self._known) > _KNOWN_IDS:
                self._known.popitem(last=False)

    def _add(self, model: str, tokens: Tokens) -> None:
        total = self._unreported.pop(model, Tokens()).plus(tokens)
        if any(total):
            self._unreported[model] = total
