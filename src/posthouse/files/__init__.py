"""Private files: directories and files that only their owner can reach, written whole or not at all."""

from posthouse.files.atomic import create_atomic, write_atomic
from posthouse.files.directory import fsync_dir, private_dir
from posthouse.files.private import check_private, open_nofollow, read_private

__all__ = [
    "check_private",
    "create_atomic",
    "fsync_dir",
    "open_nofollow",
    "private_dir",
    "read_private",
    "write_atomic",
]
