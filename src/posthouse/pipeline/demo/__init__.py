"""The demo: an invented history, written by the real product."""
