"""What stores share whichever database they are on: group commit, SQL files, results of the writer."""
