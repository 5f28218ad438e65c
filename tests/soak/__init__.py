"""Storms of calls that are cancelled, timed out and limited at random."""
