"""Storage on PostgreSQL: the only place that touches psycopg. Needs the extra `postgresql`."""
