"""Arguments of calls: from a Python call, a model or a command line to validated values."""
