"""The schema of the Pinch wire and the modules generated from it: `python -m scripts.pinch`."""
