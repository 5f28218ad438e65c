"""`llm-do rules`: the rules, and the decision about a call."""

from __future__ import annotations

import click

from ..support.options import worker_names
from ..support.projects import open_project, open_worker, worker_of
from ..terminal.errors import escape
from ..terminal.stdout import print_json

_NO_WORKER = "is a function. Name the worker that would call it."


@click.group("rules")
def rules_command() -> None:
    """Show the rules, and what they decide."""


@rules_command.command("why")
@click.argument("worker", shell_complete=worker_names)
@click.argument("tool")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--args-json", metavar="JSON", help="The arguments as a JSON object, @FILE with one, or - for standard input."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def why_command(
    ctx: click.Context, /, worker: str, tool: str, words: tuple[str, ...], args_json: str | None, as_json: bool
) -> None:
    """Explain the decision about a call.

    WORKER would call TOOL with these arguments, whose values are read as by `llm-do run`. TOOL can be a name that rules
    use, such as sandbox.write: then it is the first tool of the worker with this name that takes the arguments.

    Nothing runs, and no person is asked.
    """
    from ..support.inputs import json_object, read_pairs  # noqa: PLC0415 - it imports everything
    from ..support.rulings import rule_on_call  # noqa: PLC0415

    arguments = {} if args_json is None else json_object(args_json, "--args-json")
    texts = read_pairs(words, arguments)
    registry, name = open_worker(ctx, worker, asks=True)
    caller = worker_of(registry, name, _NO_WORKER)
    ruling = rule_on_call(registry, caller, tool, arguments, texts)
    if as_json:
        print_json(ruling)
        return
    click.echo(ruling["decision"])
    for title in ("because", "reason", "where"):
        if ruling[title]:
            click.echo(f"  {title + ':':<8} {escape(ruling[title])}")


@rules_command.command("list")
@click.argument("worker", required=False, shell_complete=worker_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_context
def list_rules_command(ctx: click.Context, /, worker: str | None, as_json: bool) -> None:
    """List all rules.

    Each has its file and line. With WORKER, only the rules for its calls are listed: its own, and those in llm-do.toml.
    """
    from ..support.descriptions import rules_of  # noqa: PLC0415 - it imports everything

    registry, name = (open_project(ctx, asks=True), None) if worker is None else open_worker(ctx, worker, asks=True)
    rules = rules_of(registry.rule_book())
    for each in registry.workers() if name is None else [name]:
        rules += rules_of(worker_of(registry, each, _NO_WORKER).rule_book)
    if as_json:
        print_json(rules)
        return
    if not rules:
        click.echo("There are no rules. By default, MCP tools and tools with effects other than read ask.", err=True)
    for rule in rules:
        reason = f" ({rule['reason']})" if rule["reason"] else ""
        where = rule["where"] or "(no file)"
        click.echo(escape(f"{where}: {rule['by']}: {rule['tool']}: {rule['rule']}{reason}"))
