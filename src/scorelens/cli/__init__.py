"""The command line: a parser, and one thin command per file."""
