"""Dead letters as files: {envelope, reason, failedAt} in failed/, written whole.

The letter is in place before the transaction that records it, and the message file goes only after that: a crash
in between leaves the message, never nothing. What is no message at all keeps its content under `raw`.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec

from posthouse.bus.mailbox import Mailbox

RAW_MAX_BYTES = 64 * 1024  # of a file that is no message: enough to see what it was
_encode = msgspec.json.Encoder().encode


def clean_text(text: str) -> str:
    """Return the text without what JSON and SQLite cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\\x00")


def letter_bytes(envelope: bytes | None, reason: str, failed_at: str, raw: bytes | None = None) -> bytes:
    """Return the file of a dead letter."""
    fields: dict[str, Any] = {"envelope": None if envelope is None else msgspec.Raw(envelope)}
    fields |= {"reason": clean_text(reason), "failedAt": failed_at}
    if raw is not None:
        fields["raw"] = raw[:RAW_MAX_BYTES].decode("utf-8", "replace")
    return _encode(fields)


def write_letter(mailbox: Mailbox, id_: str, instance: str, data: bytes, *, sync: bool = False) -> None:
    """Put a dead letter into failed/; one that is there already gives way to the newer reason."""
    temporary = f"{id_}.{instance}"
    mailbox.write(temporary, data, sync=sync)
    mailbox.move(f"tmp/{temporary}", f"failed/{id_}")
    if sync:
        mailbox.sync("failed")


def put_aside(mailbox: Mailbox, path: str, id_: str) -> bytes | None:
    """Take what is no regular file out of a mailbox; return the content of what is one.

    A directory goes to failed/<id>.stray, because it may hold something; links, pipes and the like hold nothing.
    """
    try:
        return mailbox.read(path)[:RAW_MAX_BYTES]
    except IsADirectoryError:
        mailbox.move(path, f"failed/{id_}.stray")
    except OSError as failure:
        if failure.errno == errno.EISDIR or _is_directory(mailbox, path):
            mailbox.move(path, f"failed/{id_}.stray")
        else:
            return str(failure).encode()
    return None


def _is_directory(mailbox: Mailbox, path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=mailbox.fd)
    except OSError:
        return False
    os.close(fd)
    return True
