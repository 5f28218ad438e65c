"""Values of any kind: copies, keys, texts, names, JSON Schemas."""
