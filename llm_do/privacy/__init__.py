"""Secrets, and text that is safe to show on a screen."""
