"""Tables that keep what the journal says, fact by fact."""
