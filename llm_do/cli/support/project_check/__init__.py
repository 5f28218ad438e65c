"""The check of a project: its files one by one, what they name, the models they need, and the calls they allow."""
