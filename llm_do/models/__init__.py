"""Models by name, the default model, and models of this machine."""
