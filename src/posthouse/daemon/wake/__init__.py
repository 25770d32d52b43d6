"""How agents learn of their mail: announcements to hooks, waiters, commands."""
