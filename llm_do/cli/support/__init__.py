"""What several commands use: the project, the session, the model, the run and the conversation."""
