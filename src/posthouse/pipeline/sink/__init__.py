"""The sink "posthouse": rows of a DataFrame become messages and events of a relay, once each."""

from posthouse.pipeline.sink.options import SinkOptions
from posthouse.pipeline.sink.writer import SinkWriter, sink_writer

__all__ = ["SinkOptions", "SinkWriter", "sink_writer"]
