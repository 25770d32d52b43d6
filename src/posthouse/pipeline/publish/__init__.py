"""Publish: what history tells of members and topics, given back to the mesh as events and alerts."""

from posthouse.pipeline.publish.alerts import Alarm, find_alerts
from posthouse.pipeline.publish.figures import STATS_KIND, member_figures, topic_figures
from posthouse.pipeline.publish.publish import Published, publish, through_of

__all__ = [
    "STATS_KIND",
    "Alarm",
    "Published",
    "find_alerts",
    "member_figures",
    "publish",
    "through_of",
    "topic_figures",
]
