"""Texts, questions and keys of a terminal."""
