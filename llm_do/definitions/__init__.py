"""Definitions of workers: the format of their files, and who can call whom."""
