from llm_do import entry


@entry
def count_words(text: str) -> int:
    """The number of words in a text."""
    return len(text.split())


@entry
def read_diary() -> str:
    """The diary. The architect does not name this function, so nothing that it makes can call it."""
    return "Dear diary, nobody may read this."
