"""Replay: messages of the past, sent again to a topic of a mesh or a subject of the bus."""

from posthouse.pipeline.replay.cursor import Cursor, Cursors, Terms
from posthouse.pipeline.replay.send import Replayed, replay
from posthouse.pipeline.replay.target import BusTarget, Target, TopicTarget

__all__ = ["BusTarget", "Cursor", "Cursors", "Replayed", "Target", "Terms", "TopicTarget", "replay"]
