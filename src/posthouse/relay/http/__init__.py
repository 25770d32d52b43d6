"""The relay over HTTP: one table of routes, one file per resource, problems for everything that is refused."""
