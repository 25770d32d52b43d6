"""What other rules would have done with the traffic there was."""
