"""`python -m llm_do` is `llm-do`."""

import os
import sys

# Python puts the current folder before its own libraries: a file there that is called like one of them would run.
if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) == os.path.realpath("."):
    del sys.path[0]

from .cli import main

main()
