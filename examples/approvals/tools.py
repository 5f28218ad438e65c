"""Functions of the project: those with `@entry` can be called by name, by workers that name them and from Python."""

from llm_do import entry


@entry(effects=["network"])
def publish(path: str) -> str:
    """Publish a file to all members."""
    return f"{path} is published."
