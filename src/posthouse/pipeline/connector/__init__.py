"""The Spark data source "posthouse": reads feeds of stores and relays, and writes rows back to a relay."""
