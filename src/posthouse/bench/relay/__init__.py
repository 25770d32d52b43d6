"""Measuring the relay: client and relay in separate processes, floors of the bare libraries in the same run."""
