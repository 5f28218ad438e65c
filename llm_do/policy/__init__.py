"""Rules and approvals: whether a call may run, and who is asked."""
