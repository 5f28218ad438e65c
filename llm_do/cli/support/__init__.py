"""The parts that commands share: projects, sessions, models, runs and conversations."""
