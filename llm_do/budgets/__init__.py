"""Limits of requests, tokens and money: meters, reservations, prices, and bounds of what a request can cost."""
