"""How agents learn of new mail: announcements to hooks, waiters and commands."""
