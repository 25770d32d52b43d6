"""The bridge to the host's bus."""
