"""The Pinch schema and the module generated from it by `python -m scripts.pinch`."""
