"""A project: its files, its configuration, its code, its workers as entries, and the API of one call."""
