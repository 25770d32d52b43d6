"""Storage on SQLite: the only place that touches the library."""
