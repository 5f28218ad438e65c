"""Advice to install names a command that works for the installation at hand."""

import pytest

from llm_do.machine.installation import install_extra, installer_of

EDITABLE = '{"dir_info": {"editable": true}, "url": "file:///x"}'


@pytest.mark.parametrize(
    ("prefix", "direct_url", "expected"),
    [
        ("/x/.venv", EDITABLE, "clone"),
        ("/x/.venv", '{"dir_info": {}, "url": "file:///x"}', "pip"),
        ("/h/.local/share/uv/tools/llm-do", None, "uv"),
        ("/h/.local/share/pipx/venvs/llm-do", None, "pipx"),
        ("/usr", None, "pip"),
        ("/usr", "no json", "pip"),
    ],
)
def test_each_kind_of_installation_is_known(prefix: str, direct_url: str | None, expected: str) -> None:
    """By the record of an editable installation, or by the folder of a tool."""
    assert installer_of(prefix, direct_url) == expected


def test_a_clone_is_told_to_install_itself() -> None:
    """These tests run in one."""
    assert install_extra("mcp") == "pip install -e '.[mcp]'"
