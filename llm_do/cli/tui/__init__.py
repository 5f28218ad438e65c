"""The full-screen face of `llm-do chat`."""
