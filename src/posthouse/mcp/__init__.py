"""The Model Context Protocol on a daemon: agents send, read, wait and lock through the daemon of their host."""
