"""What stores on both databases share: group commit, SQL files, results of the writer."""
