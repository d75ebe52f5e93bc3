// A run as a file: its whole log, or a document that people read.
import { get } from "./api";
import { duration, exactTime, number, reasonSentence, statusName, visible } from "./format";
import { type Entry, type LogEvent, RunModel, textOf } from "./run_model";

const PAGE = 10_000;

/** Has the browser keep a text as a file. */
export function save(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: name.endsWith(".json") ? "application/json" : "text/markdown" }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Every event of a run, as JSON, however many pages that takes. */
export async function readLog(id: string): Promise<string> {
  const data: LogEvent[] = [];
  for (let after: number | undefined, isWhole = false; !isWhole; ) {
    const page = await get<{ data: LogEvent[]; last_seq: number; has_more: boolean }>(`runs/${encodeURIComponent(id)}/events`, { after, limit: PAGE, deltas: true });
    data.push(...page.data);
    after = page.last_seq;
    isWhole = !page.has_more;
  }
  return JSON.stringify({ object: "list", data }, null, 1);
}

/** The run as Markdown. What models and tools have said stays text there, too: whoever opens it runs and loads nothing of theirs. */
export function writeMarkdown(id: string, model: RunModel): string {
  const facts: [string, string][] = [
    ["Run", `\`${id}\``], ["Model", inline(model.spec?.model)], ["Agent", inline(model.spec?.agent)], ["Status", statusName(model.status)],
    ["Began", exactTime(model.startedAt)], ["Took", duration((model.endedAt ?? model.lastAt) - model.startedAt)],
    ["Turns", number(model.turns.length)], ["Tokens", `${number(model.usage.input_tokens)} in, ${number(model.usage.output_tokens)} out`],
  ];
  const parts = ["# A run of Mainspring", facts.filter(([, value]) => value).map(([name, value]) => `- ${name}: ${value}`).join("\n")];
  if (model.spec?.instructions) parts.push("## Instructions", prose(model.spec.instructions));
  let turn = 0;
  for (const entry of model.entries) {
    if (entry.turn !== turn) parts.push(`## Turn ${(turn = entry.turn)}`);
    parts.push(...describe(entry));
  }
  return `${parts.join("\n\n")}\n`;
}

function describe(entry: Entry): string[] {
  switch (entry.kind) {
    case "call":
      return describeCall(entry);
    case "end":
      return ["## The end", `${reasonSentence(entry.title)} ${inline(entry.text)}`.trim()];
    default: {
      const title = { message: "Answer", reasoning: "Reasoning" }[entry.kind as string] ?? entry.title;
      const said = entry.text ? [prose(entry.text)] : entry.data === null ? [] : [fence(JSON.stringify(entry.data, null, 2), "json")];
      return [`### ${inline(title)} (event ${entry.seq})`, ...said];
    }
  }
}

function describeCall(entry: Entry): string[] {
  const call = entry.call!;
  const parts = [`### Call of ${inline(call.name)} (event ${entry.seq})`, fence(call.arguments || "{}", "json")];
  if (call.verdict) parts.push(`Verdict: ${inline(call.verdict)} by ${inline(call.policy)} ${inline(call.reason)}`.trim());
  if (call.output !== null) parts.push(`Result${call.outcome ? ` (${inline(call.outcome)})` : ""}:`, fence(textOf(call.output) || JSON.stringify(call.output, null, 2), "text"));
  return parts;
}

/** Within a line: as code, so that nothing in it counts. */
function inline(text: string | undefined): string {
  const line = visible(text ?? "").replace(/[`\n]/g, " ").trim();
  return /^[\w ,.:;()/-]*$/.test(line) ? line : `\`${line}\``;
}

/** Markdown as it is, unless it has what a reader could run or load, or a fence that it may leave open. */
const prose = (text: string): string => (/<|!\[|```|~~~/.test(text) ? fence(text, "markdown") : visible(text));

function fence(text: string, kind: string): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((ticks) => ticks.length));
  const ticks = "`".repeat(longest + 1);
  return `${ticks}${kind}\n${visible(text)}\n${ticks}`;
}
