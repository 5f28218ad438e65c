"""Rules on calls: what is allowed, asks or is denied, by name, arguments and call path.

`format` reads and writes rules, `conditions` matches arguments, `judging` decides calls, `checking` finds mistakes.
"""

from .calls import Call, Case
from .checking import Shape, check_rules, shape_of
from .conditions import UNKNOWN, Places, as_list
from .format import ToolRule, ToolRules, is_tool_name, remove_ineffective
from .judging import Grant, RuleBook, Ruling, anchor_rules, default_ruling, denies_any, judge, read_rules

__all__ = [
    "UNKNOWN",
    "Call",
    "Case",
    "Grant",
    "Places",
    "RuleBook",
    "Ruling",
    "Shape",
    "ToolRule",
    "ToolRules",
    "anchor_rules",
    "as_list",
    "check_rules",
    "default_ruling",
    "denies_any",
    "is_tool_name",
    "judge",
    "read_rules",
    "remove_ineffective",
    "shape_of",
]
