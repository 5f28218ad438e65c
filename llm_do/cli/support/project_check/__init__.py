"""The check of a project: its files, the names in them, the models, and the calls between workers."""
