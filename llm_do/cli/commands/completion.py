"""`llm-do completion`: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..help import COMPLETION_VARIABLE

_INSTALL = {
    "bash": "llm-do completion bash > ~/.local/share/bash-completion/completions/llm-do",
    "zsh": "llm-do completion zsh > ~/.zfunc/_llm-do  # in ~/.zshrc: fpath+=~/.zfunc; autoload -U compinit; compinit",
    "fish": "llm-do completion fish > ~/.config/fish/completions/llm-do.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion_command(ctx: click.Context, /, shell: str) -> None:
    """Print the completion script of a shell.

    The script says how to install it. To try it in the current shell: eval "$(llm-do completion bash)"; in fish,
    llm-do completion fish | source.
    """
    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(ctx.find_root().command, {}, "llm-do", COMPLETION_VARIABLE).source()
    how = f"# Completion for {shell}. To install it (the folder must exist):\n#   {_INSTALL[shell]}\n"
    first, _, rest = script.partition("\n")
    # zsh looks for #compdef in the first line.
    click.echo(f"{first}\n{how}{rest}" if first.startswith("#compdef") else f"{how}{script}", nl=False)
