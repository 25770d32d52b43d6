"""The framing of OpenSSH: strings with a length of four bytes, and blocks of base64 between BEGIN and END.

Only what ed25519 keys and signatures need. Reading is exact: a length beyond the data, bytes left over and
any other spelling of the armor are ValueError; callers turn that into the error their reader understands.
"""

from __future__ import annotations

from itertools import pairwise

from posthouse.keys.encoding import decode_base64, encode_base64

KEY_TYPE = b"ssh-ed25519"
MAX_COLUMNS = 76  # OpenSSH wraps at 70, PEM writers at 64, MIME writers at 76


def pack(*fields: bytes) -> bytes:
    """Return the fields as OpenSSH strings, one after another."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def pack_public(public: bytes) -> bytes:
    """Return the blob that OpenSSH uses for an ed25519 public key."""
    return pack(KEY_TYPE, public)


def unpack_public(blob: bytes) -> bytes:
    """Return the ed25519 public key of a blob; a key of another type is ValueError."""
    reader = Reader(blob)
    kind, public = reader.string(), reader.string()
    reader.end()
    if kind != KEY_TYPE:
        raise ValueError(f"its key is of type {kind.decode('ascii', 'backslashreplace')}")
    return public


class Reader:
    """Takes fields off the front of `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        end = self._at + count
        if end > len(self._data):
            raise ValueError("it ends too early")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def number(self) -> int:
        """Return the next four bytes as a number."""
        return int.from_bytes(self.take(4), "big")

    def string(self) -> bytes:
        """Return the next string."""
        return self.take(self.number())

    def end(self) -> None:
        """Refuse bytes that are left over."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes follow its end")


def armor(label: str, data: bytes, columns: int) -> str:
    """Return `data` as lines of base64 between BEGIN and END, ending in a line feed."""
    text = encode_base64(data)
    lines = [text[at : at + columns] for at in range(0, len(text), columns)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def unarmor(label: str, text: str) -> bytes:
    """Return the data of an armored block with nothing around it.

    Line feeds only; all lines but the last are equally long. The line feed at the very
    end may be missing, as shells take it away.
    """
    first, *lines, last = text.removesuffix("\n").split("\n") if text.count("\n") > 1 else ("", "")
    if (first, last) != (f"-----BEGIN {label}-----", f"-----END {label}-----"):
        raise ValueError(f"it is not one block of {label}")
    widths = [len(line) for line in lines]
    if not widths or max(widths) > MAX_COLUMNS or 0 in widths:
        raise ValueError("its lines are empty or too long")
    if any(here != widths[0] for here, _ in pairwise(widths)) or widths[-1] > widths[0]:
        raise ValueError("its lines differ in length")
    return decode_base64("".join(lines))
