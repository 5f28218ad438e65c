"""Paths, rules, commands and worker files as nobody would write them by accident."""

import json
from typing import Any

from hypothesis import strategies as st

NAMES = [
    "a", "b", "d", "secret.txt", "file_link", "folder_link", "loop", "hard.txt", "pipe", "..", ".", "...", "", "~",
    "~root", ".git", ".GIT", "workers", "Workers", "llm-do.toml", "tools.py", "\uff0e\uff0e", "\u2025", "a ", " a",
    "a\n", "a\0", "\u202ea", "a\\b", "..\\..", "%2e%2e", "*", "**", "?", "[a]", "[!a]", "[", "{a,b}", ".llm-do-x",
    "CON", "x" * 300, "\u0130",
]  # fmt: skip
"""Names in a path, most of which lead somewhere, or try to."""


def paths(roots: tuple[str, ...] = ("in", "out", "all", "", "/", "..", "OUT", "out ")) -> st.SearchStrategy[str]:
    """Paths as a model may write them."""
    name = st.one_of(st.sampled_from(NAMES), st.text(max_size=6))
    rest = st.lists(name, max_size=6).map("/".join)
    return st.one_of(st.tuples(st.sampled_from(roots), rest).map("/".join), rest, st.text(max_size=20))


def file_calls() -> st.SearchStrategy[tuple[str, dict[str, str]]]:
    """Calls of the file tools."""
    text = st.sampled_from(["", "x", "canary", "\ud7ff", "x" * 300])
    return st.one_of(
        st.tuples(
            st.sampled_from(["read_file", "delete_file", "list_files"]), st.fixed_dictionaries({"path": paths()})
        ),
        st.tuples(st.just("write_file"), st.fixed_dictionaries({"path": paths(), "content": text})),
        st.tuples(st.just("edit_file"), st.fixed_dictionaries({"path": paths(), "old": text, "new": text})),
        st.tuples(st.just("move_file"), st.fixed_dictionaries({"source": paths(), "destination": paths()})),
        st.tuples(st.just("find_files"), st.fixed_dictionaries({"pattern": paths()})),
        st.tuples(st.just("search_files"), st.fixed_dictionaries({"text": st.just("token"), "pattern": paths()})),
    )


TREE = ("a", "b", "s", "s/k", "s/d/k", "s2/k", "d/s/k", "d/k", ".s", "S/k")
"""The files of a small root."""


def patterns() -> st.SearchStrategy[str]:
    """Patterns of paths in that root, as rules have them."""
    step = st.sampled_from(["a", "s", "d", "k", "*", "**", "s*", "*s", "*s*", ".s", "S", "**"])
    return st.lists(step, min_size=1, max_size=4).map("/".join)


def spellings() -> st.SearchStrategy[tuple[str, dict[str, str]]]:
    """Reading calls that mean a file of that root, or several."""
    file = st.sampled_from(TREE)
    spelled = st.tuples(file, st.sampled_from(["{}", "./{}", "{}/.", "{}/", "x/../{}"])).map(
        lambda x: x[1].format(x[0])
    )
    root = st.sampled_from(["in/", "again/"])
    read = st.tuples(root, spelled).map("".join).map(lambda path: ("read_file", {"path": path}))
    searched = st.one_of(patterns(), spelled, st.just(""))
    search = (
        st.tuples(root, searched).map("".join).map(lambda path: ("search_files", {"text": "token", "pattern": path}))
    )
    return st.one_of(read, search)


PIECES = [
    "touch out/ran", "touch", "out/ran", "env", "timeout 5", "nice", "xargs", "true", "echo", "|", "&&", "||", ";",
    "&", "\n",
    "'", '"', "\\", "$", "$(", ")", "`", "(", "{", "}", ">", "<", "*", "~", "#", "=", "X=1", "sh", "-c",
    "'touch out/ran'",
    "find out -exec", "+", "/usr/bin/touch", "t'ou'ch", 'to"uc"h', "to\\uch", " ", "\t", "--", "-i", "\u202e", "\x00",
]  # fmt: skip


def commands() -> st.SearchStrategy[str]:
    """Command lines, of which many would make a file `out/ran` in a shell."""
    return st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).flatmap(
        lambda pieces: st.sampled_from([" ", ""]).map(lambda between: between.join(pieces))
    )


def words() -> st.SearchStrategy[str]:
    """Text that looks like more than text."""
    lines = st.sampled_from(
        ["tools: [wipe]", "---", "...", "created_by: (project)", "- x", "|", ">", "'", '"', "# x", "%YAML 1.1", "!!x",
         "&a", "*a",
         "{", "}", "\ufeff", "\u2028", "\x85", "\r", "\t", "  ", "", "<<: *a", "\x00", "instructions: |", "? x", ": y"]
    )  # fmt: skip
    return st.lists(st.one_of(lines, st.text(max_size=8)), max_size=6).flatmap(
        lambda parts: st.sampled_from(["\n", " ", "\r\n", ""]).map(lambda between: between.join(parts))
    )


def definitions(creator: str | None) -> st.SearchStrategy[dict[str, Any]]:
    """Worker files as mappings, with more or less authority."""
    root = st.fixed_dictionaries(
        {"root": st.sampled_from(["in", "out", "in/d", ".", "..", "out/../in", "../outside", "/"])},
        optional={
            "mode": st.sampled_from(["ro", "rw"]),
            "suffixes": st.sampled_from([[], [".txt"], [".gz"], [".tar.gz"]]),
            "max_file_bytes": st.sampled_from([1, 100, 10**9]),
        },
    )
    some = {
        "tools": st.lists(st.sampled_from(["look", "pay", "wipe"]), unique=True),
        "toolsets": st.lists(st.sampled_from(["worker_create"]), unique=True),
        "allow_workers": st.sampled_from([[], ["*"], ["other"]]),
        "sandbox": st.fixed_dictionaries(
            {"paths": st.dictionaries(st.sampled_from(["in", "out", "x"]), root, max_size=3)}
        ),
        "tool_rules": st.dictionaries(
            st.sampled_from(["look", "pay", "wipe", "sandbox.write"]),
            st.sampled_from(["allow", "ask", "deny"]),
            max_size=3,
        ),
        "native": st.sampled_from([[], ["web_search"]]),
        "limits": st.fixed_dictionaries({"max_requests": st.integers(0, 100)}),
    }
    fixed: dict[str, st.SearchStrategy[Any]] = {"instructions": st.just("x")}
    if creator is not None:
        fixed["created_by"] = st.just(creator)
    return st.fixed_dictionaries(fixed, optional=some)


def as_yaml(definition: dict[str, Any]) -> str:
    """JSON is YAML."""
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in definition.items()) + "\n"


def wrapped(value: str) -> st.SearchStrategy[Any]:
    """A text, somewhere in a value of JSON."""
    leaf = st.sampled_from([value, f"<{value}>", json.dumps(value), repr(value), f"a{value}{value}", "x", 1, None])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["k", value, f"{value}!"]), inner, max_size=3),
            inner.map(lambda item: json.dumps(item) if not isinstance(item, str) else item),
        ),
        max_leaves=6,
    )
