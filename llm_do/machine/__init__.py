"""The machine: bounded file reads, atomic writes, daemon threads, remembered answers, the installation."""
