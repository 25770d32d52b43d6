"""Code shared by the stores on both databases: group commit, SQL files, delivery of the writer's results."""
