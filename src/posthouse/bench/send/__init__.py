"""What sending through a daemon costs."""
