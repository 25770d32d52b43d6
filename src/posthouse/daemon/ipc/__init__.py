"""The local API of a daemon: HTTP over a Unix socket and loopback."""
