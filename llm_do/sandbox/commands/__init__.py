"""Command lines, and the programs that run them: in bubblewrap, or without a sandbox where a rule allows it."""
