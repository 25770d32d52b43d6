"""The local interface of a daemon: HTTP over a Unix socket and loopback."""
