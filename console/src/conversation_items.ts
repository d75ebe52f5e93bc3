// What was said in a conversation, as it is shown: each call with its result, and no item twice.
import { type Entry, isCall, makeCall, makeEntry, textOf } from "./run_model";

export function readItems(items: any[]): Entry[] {
  const entries: Entry[] = [];
  const calls = new Map<string, Entry>();
  for (const item of items) {
    if (item.type === "function_call_output") {
      const entry = calls.get(item.call_id);
      if (entry) entry.call!.output = item.output ?? null;
      else entries.push(makeEntry({ kind: "input", key: item.id, title: "Result of a call", data: item.output ?? null }));
    } else if (item.type === "mcp_approval_response") {
      entries.push(makeEntry({ kind: "input", key: item.id, title: item.approve ? "A person approved" : "A person denied", text: item.reason ?? "", data: item.reason ?? null }));
    } else if (item.type !== "mcp_approval_request") {
      // What a request asks for is the call before it; while it waits, it is shown as what it is.
      const entry = readItem(item);
      if (entry.call) calls.set(entry.call.id, entry);
      entries.push(entry);
    }
  }
  return entries;
}

function readItem(item: any): Entry {
  const common = { key: item.id, until: 0 };
  if (item.role === "assistant") return makeEntry({ ...common, kind: "message", text: textOf(item.content) });
  if (item.role) return makeEntry({ ...common, kind: "input", title: item.role === "user" ? "Asked" : "Instructions", text: textOf(item.content), data: item.content });
  if (item.type === "reasoning") return makeEntry({ ...common, kind: "reasoning", text: textOf(item.content) || textOf(item.summary) });
  if (!isCall(item)) return makeEntry({ ...common, kind: "other", title: item.type, data: item });
  const call = { ...makeCall(item), output: item.output ?? item.error ?? null };
  return makeEntry({ ...common, kind: "call", call });
}
