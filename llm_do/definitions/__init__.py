"""Definitions of workers: the format of their files, and the rights of generated ones."""
