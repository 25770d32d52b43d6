"""A warm session behind a Unix socket: questions to the lake without the seconds that Spark takes to start."""

from posthouse.pipeline.serve.asking import ask_server
from posthouse.pipeline.serve.server import Server

__all__ = ["Server", "ask_server"]
