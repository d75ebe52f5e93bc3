// A run as its events tell it: the same fold that the server does, kept to what a page shows.
import type { Json, JsonObject } from "./api";

export interface LogEvent {
  seq: number;
  at: number;
  type: string;
  [field: string]: any;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  cached: number;
  reasoning: number;
}

/** What is shown in order. `revision` grows with every change, so that only what changed is drawn again. */
export interface Entry {
  key: string;
  kind: "message" | "reasoning" | "call" | "other" | "note" | "end" | "input";
  seq: number;
  last: number;
  at: number;
  until: number | null;
  turn: number;
  revision: number;
  text: string;
  title: string;
  tone: "plain" | "good" | "bad" | "warn";
  call: Call | null;
  data: Json | null;
}

export interface Call {
  id: string;
  name: string;
  arguments: string;
  verdict: string;
  policy: string;
  reason: string;
  judgedAt: number | null;
  startedAt: number | null;
  endedAt: number | null;
  progress: string[];
  output: Json | null;
  outcome: string;
}

export interface Turn {
  number: number;
  seq: number;
  startedAt: number;
  firstAt: number | null;
  endedAt: number | null;
  usage: Usage | null;
  error: string;
}

const noUsage = (): Usage => ({ input_tokens: 0, output_tokens: 0, total_tokens: 0, cached: 0, reasoning: 0 });

export function readUsage(given: any): Usage | null {
  if (!given) return null;
  const input = given.input_tokens ?? 0;
  const output = given.output_tokens ?? 0;
  return {
    input_tokens: input,
    output_tokens: output,
    total_tokens: given.total_tokens ?? input + output,
    cached: given.input_tokens_details?.cached_tokens ?? given.cached_tokens ?? 0,
    reasoning: given.output_tokens_details?.reasoning_tokens ?? given.reasoning_tokens ?? 0,
  };
}

export function textOf(content: Json | undefined): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => (typeof part === "string" ? part : String((part as JsonObject)?.text ?? (part as JsonObject)?.refusal ?? ""))).join("");
}

/** Whether a run goes on with a person's answer: it has no question of its own, and cannot begin anew. */
export const isAnswer = (spec: any): boolean => Boolean(spec?.input?.some((item: any) => item.type === "mcp_approval_response"));

/** What a run was asked last. */
export function questionOf(spec: any): string {
  if (isAnswer(spec)) return "Goes on with a person's answer";
  const asked = (spec?.input ?? []).filter((item: any) => item.role === "user").at(-1);
  return asked ? textOf(asked.content) : "";
}

/** A question in a line: what an agent is given as JSON by another one is told without it, where it has one text in it. */
export function inLine(question: string): string {
  const only = /^\{"\w+": ?("(?:[^"\\]|\\.)*")\}$/s.exec(question)?.[1];
  try {
    return (only ? (JSON.parse(only) as string) : question).replace(/\s+/g, " ");
  } catch {
    return question; // it was no JSON
  }
}

export const makeEntry = (given: Partial<Entry> & Pick<Entry, "kind" | "key">): Entry => ({
  seq: 0, last: 0, at: 0, until: null, turn: 0, revision: 0, text: "", title: "", tone: "plain", call: null, data: null, ...given,
});

export const makeCall = (item: any): Call => ({
  id: item.call_id ?? item.id, name: item.name ?? item.type, arguments: item.arguments ?? "", verdict: "", policy: "", reason: "",
  judgedAt: null, startedAt: null, endedAt: null, progress: [], output: null, outcome: "",
});

export class RunModel {
  spec: any = null;
  entries: Entry[] = [];
  turns: Turn[] = [];
  status = "queued";
  reason = "";
  error = "";
  startedAt = 0;
  endedAt: number | null = null;
  lastAt = 0;
  next = 0;
  usage = noUsage();
  /** How many calls of other agents have begun, and how many of them have ended. */
  delegated = 0;
  returned = 0;
  /** Calls of the run that this one continues: it may perform them. */
  earlier = new Map<string, { name: string; arguments: string }>();
  private items = new Map<string, Entry>();
  private calls = new Map<string, Entry>();
  private finished = new Set<string>();

  get isOver(): boolean {
    return this.endedAt !== null;
  }

  read(event: LogEvent): void {
    if (event.seq < this.next) return;
    this.next = event.seq + 1;
    this.lastAt = event.at;
    this.take(event);
  }

  private take(event: LogEvent): void {
    switch (event.type) {
      case "run_started":
        this.spec = event.spec;
        this.startedAt = event.at;
        this.status = "in_progress";
        for (const item of event.spec?.input ?? []) this.addInput(item, event);
        return;
      case "run_resumed":
        this.note(event, "Taken up by another process", "", "warn");
        return;
      case "turn_started":
        this.turns.push({
          number: this.turns.length + 1, seq: event.seq, startedAt: event.at, firstAt: null, endedAt: null, usage: null, error: "",
        });
        return;
      case "item_started":
        this.openItem(event.item, event);
        return;
      case "text_delta":
      case "refusal_delta":
      case "reasoning_delta":
      case "arguments_delta":
        this.addDelta(event);
        return;
      case "item_done":
        this.closeItem(event.item, event);
        return;
      case "turn_ended":
        this.endTurn(event);
        return;
      case "turn_aborted":
        this.note(event, "The turn was cut off", "The model is asked again if the run goes on.", "warn");
        this.closeTurn(event.at);
        return;
      case "call_judged":
        this.onCall(event, (call, entry) => {
          Object.assign(call, { verdict: event.verdict, policy: event.policy ?? "", reason: event.reason ?? "", judgedAt: event.at });
          if (event.verdict === "deny") entry.tone = "bad";
        });
        return;
      case "tool_started":
        this.onCall(event, (call) => {
          call.startedAt = event.at;
          if (isDelegation(call)) this.delegated += 1;
        });
        return;
      case "tool_progress":
        this.onCall(event, (call) => call.progress.push(event.text));
        return;
      case "tool_ended":
        this.onCall(event, (call, entry) => {
          const outcome = event.outcome ?? (event.is_error ? "error" : "ok");
          Object.assign(call, { output: event.output, outcome, endedAt: event.at });
          if (isDelegation(call)) this.returned += 1;
          if (call.startedAt === null && event.seconds) call.startedAt = event.at - event.seconds;
          entry.until = event.at;
          entry.tone = outcome === "ok" || outcome === "reused" ? "good" : "bad";
          entry.data = event.data ?? null;
        });
        return;
      case "nudged":
        this.note(event, `The engine reminded the model (${event.kind})`, event.text, "warn");
        return;
      case "tool_withheld":
        this.note(event, `The tool ${event.name} is withheld`, event.reason, "warn");
        return;
      case "compacted":
        this.note(event, event.error ? "Compaction failed" : "What came before was summed up", event.error?.message ?? textOf(event.item?.content), "warn");
        return;
      case "run_ended":
        this.end(event);
    }
  }

  private add(entry: Partial<Entry> & { kind: Entry["kind"]; key: string }, event: LogEvent): Entry {
    const made = makeEntry({ seq: event.seq, last: event.seq, at: event.at, turn: this.turns.length, ...entry });
    this.entries.push(made);
    return made;
  }

  private touch(entry: Entry, event: LogEvent): void {
    entry.revision += 1;
    entry.last = event.seq;
  }

  private note(event: LogEvent, title: string, text: string, tone: Entry["tone"]): void {
    this.add({ kind: "note", key: `n${event.seq}.${this.entries.length}`, title, text: text ?? "", tone, until: event.at }, event);
  }

  private addInput(item: any, event: LogEvent): void {
    const key = `i${this.entries.length}`;
    if (item.type === "function_call_output") {
      this.add({ kind: "input", key, title: "Result of a call, from the client", text: "", data: item.output ?? null }, event);
    } else if (item.type === "mcp_approval_response") {
      const title = item.approve ? "A person approved" : "A person denied";
      this.add({ kind: "input", key, title, text: item.reason ?? "The call of the run before is answered.", data: item }, event);
    } else if (item.role) {
      const who: Record<string, string> = { user: "Asked", system: "System", developer: "Developer", assistant: "Assistant" };
      this.add({ kind: "input", key, title: who[item.role] ?? item.role, text: textOf(item.content), data: item.content }, event);
    } else {
      this.add({ kind: "input", key, title: item.type ?? "Input", data: item }, event);
    }
  }

  private openItem(item: any, event: LogEvent): Entry {
    const turn = this.turns.at(-1);
    if (turn && turn.firstAt === null) turn.firstAt = event.at;
    const key = item.id ?? `e${event.seq}`;
    const kind = item.type === "reasoning" ? "reasoning" : item.type === "message" || item.role ? "message" : isCall(item) ? "call" : "other";
    const entry = this.add({ kind, key: `${key}#${event.seq}`, title: kind === "other" ? item.type : "" }, event);
    if (kind === "call") {
      entry.call = makeCall(item);
      this.calls.set(entry.call.id, entry);
    }
    this.items.set(key, entry);
    return entry;
  }

  private addDelta(event: LogEvent): void {
    const entry = this.items.get(event.item_id);
    if (!entry) return;
    if (event.type === "arguments_delta") entry.call!.arguments += event.delta;
    else entry.text += event.delta;
    this.touch(entry, event);
  }

  private closeItem(item: any, event: LogEvent): void {
    const entry = this.items.get(item.id) ?? this.openItem(item, event);
    this.finished.add(item.id);
    entry.until = event.at;
    if (entry.kind === "call") {
      entry.call!.arguments = item.arguments ?? entry.call!.arguments;
      entry.call!.name = item.name ?? entry.call!.name;
    } else if (entry.kind === "reasoning") {
      entry.text = textOf(item.content) || textOf(item.summary) || entry.text;
    } else if (entry.kind === "message") {
      entry.text = textOf(item.content) || entry.text;
    } else {
      entry.data = item;
    }
    this.touch(entry, event);
  }

  private closeTurn(at: number): Turn | undefined {
    const turn = this.turns.at(-1);
    if (turn && turn.endedAt === null) turn.endedAt = at;
    return turn;
  }

  private endTurn(event: LogEvent): void {
    const turn = this.closeTurn(event.at);
    const usage = readUsage(event.usage);
    if (turn) Object.assign(turn, { usage, error: event.error?.message ?? "" });
    if (usage) for (const name of Object.keys(usage) as (keyof Usage)[]) this.usage[name] += usage[name];
    for (const each of event.adaptations ?? []) this.addAdaptation(each, event);
    if (event.error) this.note(event, `The model failed (${event.error.code})`, event.error.message, "bad");
    else if (event.finish === "length") this.note(event, "The turn was cut at its longest", "", "warn");
  }

  /** What was done so that the model's provider and the engine understand each other, such as a second attempt. */
  private addAdaptation({ kind, field, value, why = "", attempt = 0, is_kept: isKept = false }: any, event: LogEvent): void {
    const told: Record<string, string> = {
      changed: `The model was asked again, attempt ${attempt || 2}: ${field} is ${value}`,
      recovered: `Read from an odd form: ${field}`,
      learned: `Learned of this model: ${field} is ${value}`,
    };
    this.note(event, told[kind] ?? kind, `${why}${isKept ? " (kept for later runs)" : ""}`, kind === "changed" ? "warn" : "plain");
  }

  private onCall(event: LogEvent, change: (call: Call, entry: Entry) => void): void {
    let entry = this.calls.get(event.call_id);
    if (!entry) {
      // A call that the run before has left open: its answer came with the input.
      const known = this.earlier.get(event.call_id) ?? { name: "call of the run before", arguments: "" };
      entry = this.openItem({ type: "function_call", id: event.call_id, call_id: event.call_id, ...known }, event);
    }
    change(entry.call!, entry);
    this.touch(entry, event);
  }

  private end(event: LogEvent): void {
    this.status = event.status;
    this.reason = event.reason;
    this.error = event.error?.message ?? "";
    this.endedAt = event.at;
    this.closeTurn(event.at);
    const tone = event.status === "completed" ? "good" : event.status === "failed" ? "bad" : "warn";
    this.add({ kind: "end", key: "end", title: event.reason, text: this.error, tone, until: event.at }, event);
  }
}

export function isCall(item: any): boolean {
  return typeof item.call_id === "string" || item.type === "function_call" || item.type === "mcp_call" || "arguments" in item;
}

const isDelegation = (call: Call): boolean => call.name.startsWith("agent_");
