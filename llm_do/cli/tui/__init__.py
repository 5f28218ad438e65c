"""The full-screen mode of `llm-do chat`."""
