"""The relay's store on PostgreSQL."""
