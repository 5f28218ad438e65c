"""Rules and approvals of calls."""
