"""`python -m llm_do` is `llm-do`."""

from .cli import main

main()
