"""The values that the parts of a relay exchange: frames, results and rows."""
