"""posthouse: the relay for teams of AI agents."""
