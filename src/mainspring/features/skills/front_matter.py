"""The front matter of a skill, field by field: YAML read as text, with the line of whatever is wrong.

The nodes that the YAML makes know their lines; no value is made out of them, so a front matter can neither build objects nor
mean something other than it says. Import this only to read a skill: the YAML library takes longer to import than most commands.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from logging import getLogger
from pathlib import Path
from typing import Final

import yaml

from mainspring.core.errors import InvalidRequest

log = getLogger(__name__)

PATTERN: Final = re.compile(r"[^\s:(),]+(?::(?:\*|[^\s:(),*?]+))?")
# What other programs call a tool and what it may be given, as in `Bash(git add:*)`.
FOREIGN: Final = re.compile(r"[^\s:(),]+\([^()]*\)")
_PARTS: Final = re.compile(r"[^\s,(]+\([^()]*\)|[^\s,]+")


class Fields:
    """The fields that a front matter has, out of those that are known. `problems` gathers what is wrong, with its line.

    Raises `InvalidRequest` by file and line if the whole is not to be read. `-` and `_` are one in a key.
    """

    def __init__(self, text: str, file: Path, known: Sequence[str]) -> None:
        self.problems: list[tuple[int, str]] = []
        self._file = file
        self._nodes: dict[str, yaml.Node] = {}
        for key, node in _pairs(_composed(text, file), file):
            name = key.value.replace("-", "_")
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"did you mean `{close[0]}`?" if close else f"put it under `metadata`; known: {', '.join(known)}"
                self.problems.append((_line(key), f"unknown key `{key.value}`; {hint}"))
            elif name in self._nodes:
                self.problems.append((_line(key), f"`{key.value}` is there twice; keep one"))
            else:
                self._nodes[name] = node

    def fault(self, key: str, problem: str) -> None:
        # What is missing belongs at the top.
        self.problems.append((_line(self._nodes[key]) if key in self._nodes else 1, problem))

    def text(self, key: str, most: int, *, required: bool = False) -> str:
        node = self._nodes.get(key)
        value = "" if node is None else _text(node)
        if value is None:
            self.fault(key, f"`{key}` must be text")
        elif required and not value:
            self.fault(key, f"`{key}` is missing; a skill needs one")
        elif len(value) > most:
            self.fault(key, f"`{key}` has {len(value)} characters; at most {most} are allowed")
        return value or ""

    def texts(self, key: str) -> dict[str, str]:
        node = self._nodes.get(key)
        if node is None:
            return {}
        pairs = (
            [(_text(name), _text(value)) for name, value in node.value] if isinstance(node, yaml.MappingNode) else [(None, None)]
        )
        if any(None in pair for pair in pairs):
            self.fault(key, f"`{key}` must be a mapping from text to text")
        return {name: value for name, value in pairs if name is not None and value is not None}

    def patterns(self, key: str, *, foreign: bool = False) -> tuple[str, ...] | None:
        """Patterns of tools: a list, or a text with blanks or commas between. A text without any could mean two things.

        With `foreign`, there may be tools of other programs among them, which fit none of ours; they are logged.
        """
        node = self._nodes.get(key)
        if node is None:
            return None
        is_list = isinstance(node, yaml.SequenceNode)
        parts = [_text(part) for part in node.value] if is_list else _PARTS.findall(_text(node) or "")
        if not parts and not is_list:
            self.fault(key, f"`{key}` names no tools; list them, write `[]` for none, or leave it out")
        for part in parts:
            if foreign and part is not None and FOREIGN.fullmatch(part):
                log.warning("%s:%d: `%s` in `%s` is no tool here, and allows none", self._file, _line(node), part, key)
            elif part is None or not PATTERN.fullmatch(part):
                self.fault(key, f"`{part}` in `{key}` is no tool; write `tool`, `tool:operation` or `tool:*`")
        return tuple([part for part in parts if part is not None])


def _composed(text: str, file: Path) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark is not None else 2
        why = error.problem or error.context
        raise InvalidRequest(f"{file}:{line}: this is not YAML: {why}; put values with `:` or `#` in quotes") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 2
        raise InvalidRequest(f"{file}:{line}: a character that YAML does not allow; take it out") from error
    except RecursionError:
        raise InvalidRequest(f"{file}:2: the front matter is nested too deeply; make it flat") from None
    return root


def _pairs(root: yaml.Node | None, file: Path) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    if root is None:
        return []
    if isinstance(root, yaml.MappingNode) and all(isinstance(key, yaml.ScalarNode) for key, _ in root.value):
        return list(root.value)
    raise InvalidRequest(f"{file}:{_line(root)}: the front matter must be lines like `name: value`")


def _text(node: yaml.Node) -> str | None:
    return str(node.value).strip() if isinstance(node, yaml.ScalarNode) else None


def _line(node: yaml.Node) -> int:
    """The line in the file, from 1; the front matter begins with the second."""
    return int(node.start_mark.line) + 2
