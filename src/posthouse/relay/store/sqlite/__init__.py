"""The relay's store on SQLite."""
