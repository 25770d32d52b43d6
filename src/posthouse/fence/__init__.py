"""Fences for what a lock protects: refuse the late write of a former holder."""

from posthouse.fence.fence import Fence
from posthouse.fence.table import FenceTable

__all__ = ["Fence", "FenceTable"]
