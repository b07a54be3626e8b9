"""Output of the command line: tables and lines for people, JSON for programs."""
