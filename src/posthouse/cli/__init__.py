"""The command line: one file per subcommand, one rim for errors, one console for output."""
