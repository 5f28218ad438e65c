"""A call: entries, dispatch, approval, scope, record."""
