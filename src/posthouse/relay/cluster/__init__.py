"""Several relays on one store: what each learns from the others."""
