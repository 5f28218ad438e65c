"""Tools that llm-do brings for workers, in the modules that `policy/catalogue.py` names."""
