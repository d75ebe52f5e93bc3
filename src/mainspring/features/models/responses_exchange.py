"""One exchange by the Responses API, as far as habits show in it."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final

from mainspring.core.items import Json
from mainspring.features.models.native_exchange import (
    NativeExchange,
    count,
    declare_tools,
    dict_of,
    find_place,
    hold_to,
    list_of,
    say,
    tell_history,
)


class ResponsesExchange(NativeExchange):
    standard = NativeExchange.standard | {"stop with calls"}

    def read_request(self) -> Json:
        form = dict_of(dict_of(self.own.get("text")).get("format")).get("schema")
        messages = tell_history(self.own.get("input"), lambda item: item.get("type") == "function_call" and item.get("call_id"))
        limit = self.own.get("max_output_tokens")
        return {"tools": declare_tools(self.own.get("tools")), "messages": messages, "max_tokens": limit, **hold_to(form)}

    def list_items(self, kind: str) -> list[Json]:
        """The items of the events of this kind."""
        told = [dict_of(event.get("item")) for event in self.events if event.get("type") == f"response.output_item.{kind}"]
        return [item for item in told if isinstance(item.get("type"), str)]

    @cached_property
    def whole(self) -> Json | None:
        """The answer as the last event has it, or as it came without a stream."""
        ends = [dict_of(event.get("response")) for event in self.events if event.get("type") in _ENDS]
        ends += [] if self.is_stream else [event for event in self.events if "output" in event]
        return ends[-1] if ends else None

    @property
    def has_end(self) -> bool:
        return self.whole is not None

    def list_pieces(self, *kinds: str) -> list[str]:
        told = [event.get("delta") for event in self.events if event.get("type") in [f"response.{kind}.delta" for kind in kinds]]
        return [each for each in told if isinstance(each, str)]

    @cached_property
    def chunks(self) -> list[Json]:
        """What was said in pieces, then the calls, by the events of their ends or else by the whole."""
        whole = self.whole or {}
        done = self.list_items("done") or list_of(whole.get("output"))
        said = self.list_pieces("output_text") or [text for item in done for text in _list_texts(item, "message")]
        thoughts = self.list_pieces("reasoning_text", "reasoning_summary_text")
        found = [say({"content": each}) for each in said] + [say({"reasoning_content": each}) for each in thoughts]
        calls = [item for item in done if item.get("type") == "function_call"]
        if not calls:
            calls = [item for item in self.list_items("added") if item.get("type") == "function_call"]
            last = [str(event["arguments"]) for event in self.events if event.get("arguments")]
            calls = [{**call, "arguments": told} for call, told in zip(calls, last, strict=False)]
        for call in calls:
            found.append(self.make_call(call.get("name"), call.get("arguments") or "", call.get("call_id") or ""))
            found[-1]["choices"][0]["delta"]["tool_calls"][0]["id"] = call.get("call_id")
        usage = dict_of(whole.get("usage"))
        found += [count(usage.get("input_tokens"), usage.get("output_tokens"))] if usage else []
        failed = [event for event in self.events if event.get("type") in ("error", "response.failed")]
        if failed:
            return [*found, {"error": whole.get("error") or failed[0]}]
        why = dict_of(whole.get("incomplete_details")).get("reason")
        reason = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(str(why), "stop")
        return [*found, say(reason=reason)] if self.has_end else found

    def changes_ids(self) -> bool:
        ids: dict[int, set[str]] = {}
        told: list[tuple[int, Json]] = [(place, item) for place, item in enumerate(list_of((self.whole or {}).get("output")))]
        told += [(find_place(event, "output_index"), dict_of(event.get("item"))) for event in self.events if "item" in event]
        told += [(find_place(event, "output_index"), {"id": event.get("item_id")}) for event in self.events if "item_id" in event]
        for place, item in told:
            if item.get("id") and place >= 0:
                ids.setdefault(place, set()).add(str(item["id"]))
        return any(len(each) > 1 for each in ids.values())

    def lacks_bounds(self) -> bool:
        added, done = self.list_items("added"), self.list_items("done")
        said = self.list_pieces("output_text", "function_call_arguments")
        return self.has_end and (len(added) != len(done) or bool(said and not added))

    def disorders(self) -> bool:
        """An item ends before it begins."""
        kinds = [
            str(event.get("type")).rpartition(".")[2] for event in self.events if "item" in event and "output_index" in event
        ]
        return "added" in kinds and "done" in kinds[: kinds.index("added")]

    def lacks_fields(self) -> bool:
        made = self.list_items("added") or self.list_items("done")
        return self.whole is not None and (not self.whole.get("usage") or bool(made and not self.whole.get("output")))

    habits: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "whole answer": lambda seen: (
            list_of((seen.whole or {}).get("output")) and not any("item" in event or "delta" in event for event in seen.events)
        ),
        "ids change": changes_ids,
        "parts without bounds": lacks_bounds,
        "events out of order": disorders,
        "fields left out": lacks_fields,
        "unknown events": lambda seen: (
            seen.is_stream and any(not str(event.get("type")).startswith(("response.", "error")) for event in seen.events)
        ),
        "unknown items": lambda seen: any(
            item["type"] not in _ITEMS and not item["type"].startswith("mcp_") for item in seen.list_items("done")
        ),
    }


def _list_texts(item: Json, kind: str) -> list[str]:
    parts = list_of(item.get("content")) if item.get("type") == kind else []
    return [text for part in parts if isinstance(text := part.get("text"), str)]


_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_ITEMS: Final[frozenset[str]] = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "web_search_call",
        "file_search_call", "computer_call", "image_generation_call", "code_interpreter_call", "local_shell_call", "shell_call",
        "apply_patch_call", "tool_search_call", "tool_search_output", "compaction",
    }
)  # fmt: skip
