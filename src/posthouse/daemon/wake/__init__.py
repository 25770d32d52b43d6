"""Wake agents for new mail: announcements to hooks, waiters and commands."""
