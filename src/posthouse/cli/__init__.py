"""The command line: one file per subcommand, one place for errors, one for output."""
