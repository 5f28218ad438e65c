"""Tools that llm-do brings for workers: `table` says which worker file asks for which, and in which module they are."""
