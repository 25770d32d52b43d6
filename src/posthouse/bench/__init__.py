"""Measurements of this machine, side by side with the bare libraries doing the same in the same run."""
