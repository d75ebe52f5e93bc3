"""Habits that show in the answer itself: what is said twice, in a wrong place or only half."""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from mainspring.features.models.seen_exchange import SeenExchange, decode, find_function, is_error
from mainspring.providers.argument_types import fit_arguments
from mainspring.providers.leak_reader import LeakReader
from mainspring.providers.leaked_calls import is_cut_call, is_cut_object


def _is_labelled(seen: SeenExchange) -> bool:
    """A call is all of the text, in none of the forms that have a name of their own."""
    if seen.calls or not seen.names_tool(seen.text) or _OTHER_FORM.match(seen.text):
        return False
    return seen.has_leaked_call


def _repeats_text(seen: SeenExchange) -> bool:
    pieces = [said for delta in seen.deltas if isinstance(said := delta.get("content"), str) and said]
    if len(pieces) == 2 and len(pieces[0]) > 12 and pieces[0] == pieces[1]:
        return True
    longer = [later.startswith(before) and later != before for before, later in pairwise(pieces)]
    return (len(longer) > 1 and all(longer[:-1])) or (
        len(pieces) > 2 and len(pieces[-1]) > 8 and pieces[-1] == "".join(pieces[:-1])
    )


def _has_values_as_text(seen: SeenExchange) -> bool:
    known = [(seen.definitions[name], told) for name, told in seen.made if name in seen.definitions]
    return any(isinstance(decode(told), dict) and fit_arguments(told, tool) != told for tool, told in known)


def _has_own_ids(seen: SeenExchange) -> bool:
    named = [piece for piece in seen.pieces if find_function(piece).get("name")]
    ids, places = ({piece.get(key) for piece in named if piece.get(key) is not None} for key in ("id", "index"))
    if len(ids) > len(places) > 0 and not any(isinstance(decode(told), dict) for _, told in seen.made):
        return True  # each names the tool, and has a part of the arguments
    others = [piece for piece in seen.pieces if piece not in named and find_function(piece).get("arguments")]
    return any(
        (piece.get("id") and ids and piece["id"] not in ids) or (places and piece.get("index") not in places) for piece in others
    )


def _misplaces_calls(seen: SeenExchange) -> bool:
    parts = [part for delta in seen.deltas if isinstance(said := delta.get("content"), list) for part in said]
    functions = [piece.get("function") for piece in seen.pieces]
    is_odd = any(isinstance(each, str) or (isinstance(each, dict) and "parameters" in each) for each in functions)
    is_late = any(choice.get("delta") == {} and (choice.get("message") or {}).get("tool_calls") for choice in seen.choices)
    is_part = is_odd or is_late or any(isinstance(part, dict) and part.get("type") == "tool_use" for part in parts)
    return is_part or any(isinstance(delta.get("tool_calls"), dict | str) for delta in seen.deltas)


def _has_empty_call(seen: SeenExchange) -> bool:
    return any(name for name, _ in seen.made) and any(not name and told in ("", "{}", "null") for name, told in seen.made)


def _is_blank(seen: SeenExchange) -> bool:
    return bool(seen.text) and seen.text.isspace() and not seen.calls and "stop" in seen.finishes


def _is_half(seen: SeenExchange) -> bool:
    if "length" in seen.finishes:
        return False
    if any(decode(told) is None and is_cut_object(told) for _, told in seen.made):
        return True
    is_tagged = not seen.calls and _OTHER_FORM.match(seen.text) is not None
    return is_tagged and (is_cut_call(seen.text, seen.definitions) or _is_unread(seen))


def _is_unread(seen: SeenExchange) -> bool:
    reader = LeakReader(seen.definitions.values())
    return reader.end(reader.feed(seen.text)).is_cut


_OTHER_FORM: Final = re.compile(
    r"\s*(?:<(?:tool|function|invoke|\||\uff5c|minimax|seed)|\[TOOL|\[?\{|```|analysis|commentary)", re.IGNORECASE
)
_HALF: Final = re.compile(r'\\u[dD][89abAB][0-9a-fA-F]{2}"')
ODD_ANSWERS: Final[Mapping[str, Callable[[SeenExchange], object]]] = {
    "call with labels": _is_labelled,
    "text repeated": _repeats_text,
    "values as text": _has_values_as_text,
    "ids per piece": _has_own_ids,
    "calls out of place": _misplaces_calls,
    "empty calls": _has_empty_call,
    "half calls": _is_half,
    "content as object": lambda seen: any(isinstance(delta.get("content"), dict) for delta in seen.deltas),
    "blank answer": _is_blank,
    "half characters": lambda seen: _HALF.search(seen.raw),
    "empty errors": lambda seen: any(chunk.get("error") and not is_error(chunk["error"]) for chunk in seen.chunks),
    "odd lines": lambda seen: seen.is_stream and (b"\r\r" in seen.raw.encode() or "data: data:" in seen.raw),
}
