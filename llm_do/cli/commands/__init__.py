"""The commands of `llm-do`, one module for each, of its name."""
