"""The Model Context Protocol on a daemon: agents send, read, wait and lock as the member of that daemon."""
