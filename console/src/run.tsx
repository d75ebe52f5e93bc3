import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, post, serverUrl } from "./api";
import { Again, type Origin } from "./again";
import type { Approval, RunDetails } from "./api_types";
import { approvals, type OwnedApproval } from "./approvals_data";
import { ApprovalCard } from "./approvals";
import { EntryView, type EntryAction } from "./entry";
import { useFollowing } from "./following";
import { compact, duration, endSentence, exactTime, money, number, tenantName } from "./format";
import { LiveRun } from "./live_run";
import { readLog, save, writeMarkdown } from "./run_files";
import { RunTree } from "./run_tree";
import { exampleHeader, exampleKey, hasTenants, mayUse } from "./session";
import { adjust, go, link, place } from "./router";
import { Copy, Failure, now, Said, Status, Time, useKeys, useLoaded, useTitle } from "./parts";
import { type Entry, inLine, isAnswer, questionOf, type RunModel, textOf, type Turn } from "./run_model";
import { Waterfall } from "./waterfall";

const GROUP = 40;

export function RunScreen({ id }: { id: string }) {
  const live = useMemo(() => new LiveRun(id), [id]);
  useEffect(() => () => live.stop(), [live]);
  const drawn = live.drawn.value;
  const model = live.model;
  const [search, setSearch] = useState("");
  const box = useRef<HTMLInputElement>(null);
  const given = place.value.query.get("event");
  const chosen = given === null ? null : Number(given);
  const prompt = inLine(questionOf(model.spec));
  const [origin, setOrigin] = useState<Origin | null>(null);
  const canBegin = mayUse("responses") && model.spec && !model.spec.metadata?.demo && !isAnswer(model.spec);
  const branch: EntryAction = { name: "Branch", takes: ["message", "call", "input"], act: (entry) => setOrigin({ id, spec: model.spec, until: entry }) };
  useTitle(prompt ? prompt.slice(0, 60) : "Run");
  const shown = useMemo(() => filter(model.entries, search), [drawn, search]);
  const at = chosen === null ? -1 : findEntry(shown, chosen);
  const choose = (seq: number) => adjust({ event: seq });
  const step = (by: number) => {
    const next = shown[Math.min(shown.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : shown.length - 1) : at + by))];
    if (next) choose(next.seq);
  };
  useKeys({
    ArrowRight: () => step(1), j: () => step(1), ArrowLeft: () => step(-1), k: () => step(-1), "/": () => box.current?.focus(),
    Escape: () => adjust({ event: null }),
    // At once, and not smoothly: what is drawn on the way to the end would move it.
    End: () => document.querySelector(".group:last-child > :last-child")?.scrollIntoView({ block: "end", behavior: "instant" }),
  });
  const wasLive = useWasLive(model);
  useFollowing(drawn, wasLive && chosen === null && model.turns.length > 0);
  if (live.error.value && !model.spec) return <div class="page"><Failure error={live.error.value} /><p><a href={link("runs")}>All runs</a></p></div>;
  return (
    <div class="page run">
      <Head id={id} model={model} drawn={drawn} connected={live.connected.value} isRead={live.isRead.value} prompt={prompt} again={canBegin ? () => setOrigin({ id, spec: model.spec, until: null }) : null} />
      {live.error.value ? <Failure error={live.error.value} /> : null}
      {model.spec ? <RunTree spec={model.spec} isOver={model.isOver} delegated={model.delegated} returned={model.returned} /> : null}
      {model.startedAt ? <Waterfall model={model} drawn={drawn} now={model.isOver ? 0 : now.value} chosen={chosen} choose={choose} /> : null}
      <div class="bar tools">
        <label class="grow">
          <span class="hidden">Search in this run</span>
          <input
            ref={box} type="search" placeholder="Search in this run ( / )" value={search} onInput={(event) => setSearch(event.currentTarget.value)}
            onKeyDown={(event) => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); else if (event.key === "Escape") event.currentTarget.blur(); }}
          />
        </label>
        <label class="scrub">
          <span class="hidden">Step through events</span>
          <input
            type="range" min={0} max={Math.max(0, shown.length - 1)} value={at < 0 ? Math.max(0, shown.length - 1) : at}
            aria-valuetext={at < 0 ? "none chosen" : `event ${shown[at]!.seq}`} onInput={(event) => choose(shown[Number(event.currentTarget.value)]!.seq)}
          />
        </label>
        <span class="faint" role="status">{search ? `${shown.length} of ${number(model.entries.length)}` : `${number(model.next)} events`}</span>
      </div>
      <Entries entries={shown} chosen={at < 0 ? null : shown[at]!} runId={id} search={search} drawn={drawn} branch={canBegin && model.isOver ? branch : null} turns={model.turns} />
      {origin ? <Again origin={origin} close={() => setOrigin(null)} /> : null}
      <Ending id={id} isWaiting={model.reason === "approval_needed"} tenant={hasTenants() ? (model.spec?.tenant ?? "") : ""} />
    </div>
  );
}

function filter(entries: Entry[], search: string): Entry[] {
  if (!search) return entries;
  const text = search.toLowerCase();
  const holds = (entry: Entry) =>
    [entry.text, entry.title, entry.call?.name, entry.call?.arguments, entry.call?.policy, entry.call?.reason, ...(entry.call?.progress ?? []), JSON.stringify(entry.call?.output ?? entry.data ?? "")]
      .some((each) => each?.toLowerCase().includes(text));
  return entries.filter(holds);
}

/** The entry that an event belongs to. */
function findEntry(entries: Entry[], seq: number): number {
  const own = entries.findIndex((entry) => entry.seq === seq);
  if (own >= 0) return own;
  return entries.findLastIndex((entry) => entry.seq <= seq);
}

/** Whether this run was seen while it went on: what ended before one came is read from its beginning. */
function useWasLive(model: RunModel): boolean {
  const wasLive = useRef(false);
  if (!model.isOver && model.lastAt > Date.now() / 1000 - 5) wasLive.current = true;
  return wasLive.current;
}

interface HeadProps {
  id: string;
  model: RunModel;
  drawn: number;
  connected: boolean;
  isRead: boolean;
  prompt: string;
  again: (() => void) | null;
}

function Head({ id, model, connected, isRead, prompt, again }: HeadProps) {
  const [error, setError] = useState<unknown>(null);
  const spec = model.spec;
  const took = (model.endedAt ?? now.value) - model.startedAt;
  const calls = model.entries.filter((entry) => entry.kind === "call").length;
  // Prices are the server's to know, and which limit a run has met.
  const ended = useLoaded(async () => (model.isOver ? get<RunDetails>(`runs/${encodeURIComponent(id)}`) : null), `${id} ${model.isOver}`).value;
  const cancel = () => post(`runs/${encodeURIComponent(id)}/cancel`).then(() => setError(null), setError);
  return (
    <header class="runhead">
      <p class="crumbs"><a href={link("runs")}>Runs</a> / <code>{id}</code></p>
      <h1>{prompt ? prompt.slice(0, 240) : "Run"}</h1>
      <div class="facts">
        {isRead ? <Status status={model.status} waiting={model.reason === "approval_needed"} /> : null}
        {spec ? <span><span class="faint">Model</span> {spec.model}</span> : null}
        {spec?.agent ? <span><span class="faint">Agent</span> {spec.agent}</span> : null}
        {spec?.tenant ? <span><span class="faint">Tenant</span> {tenantName(spec.tenant)}</span> : null}
        {model.startedAt ? <span><span class="faint">Began</span> <Time at={model.startedAt} told={exactTime} /></span> : null}
        {isRead && model.startedAt ? <span><span class="faint">Took</span> {duration(took)}</span> : null}
        <span><span class="faint">Turns</span> {number(model.turns.length)}</span>
        <span><span class="faint">Calls</span> {number(calls)}</span>
        <span title={`${number(model.usage.input_tokens)} in, ${number(model.usage.output_tokens)} out, ${number(model.usage.cached)} from the cache`}>
          <span class="faint">Tokens</span> {compact(model.usage.total_tokens)}
        </span>
        {ended?.cost == null ? null : <span><span class="faint">Cost</span> {money(ended.cost)}</span>}
      </div>
      <p class="why" role="status">
        {model.isOver ? <Said text={whyItEnded(model, ended)} /> : !isRead ? "Reading what has happened…" : connected ? "It is running; this page follows it." : "The connection is lost; trying again."}
      </p>
      <div class="actions">
        {isRead && model.startedAt && !model.isOver && mayUse("responses") ? <button class="danger" onClick={cancel}>Cancel</button> : null}
        {spec ? <Copy label="Copy as curl" text={() => asCurl(spec)} /> : null}
        {spec ? <Copy label="Copy as Python" text={() => asPython(spec)} /> : null}
        {model.isOver ? <button class="quiet" onClick={() => void readLog(id).then((log) => save(`${id}.json`, log), setError)}>Download JSON</button> : null}
        {model.isOver ? <button class="quiet" onClick={() => save(`${id}.md`, writeMarkdown(id, model))}>Download Markdown</button> : null}
        {again ? <button class="quiet" onClick={again}>Run again</button> : null}
        {model.isOver && model.status === "completed" && mayUse("conversations") && !spec?.metadata?.demo ? <button class="quiet" onClick={() => go("chat", { after: id })}>Continue</button> : null}
        {spec?.parent ? <a class="button quiet" href={link(`runs/${spec.parent}`)}>The run before</a> : null}
      </div>
      {error ? <Failure error={error} /> : null}
      {spec?.instructions || spec?.tools?.length ? <details class="instructions"><summary>Instructions and tools</summary>{spec.instructions ? <p>{spec.instructions}</p> : null}<Tools spec={spec} /></details> : null}
    </header>
  );
}

/** In a sentence; the server names the limit, where it was one. */
function whyItEnded(model: RunModel, ended: RunDetails | null): string {
  const isLimit = model.status === "incomplete" && ended?.why;
  return isLimit ? `${ended.why![0]!.toUpperCase()}${ended.why!.slice(1)}.` : endSentence(model.reason, model.error);
}

function Tools({ spec }: { spec: any }) {
  const named = (spec.tools ?? []).filter((tool: any) => tool.name);
  return (
    <ul>
      {named.map((tool: any) => <li><code>{tool.name}</code> {tool.description ?? ""}</li>)}
    </ul>
  );
}

function bodyOf(spec: any) {
  const input = (spec.input ?? []).map(({ id: _, status: __, ...item }: any) => item);
  return {
    model: spec.agent ? `agent:${spec.agent}` : spec.model,
    input: input.length === 1 && input[0].role === "user" && input[0].content.every?.((part: any) => part.type === "input_text") ? textOf(input[0].content) : input,
    ...(spec.instructions && !spec.agent ? { instructions: spec.instructions } : {}),
    ...(spec.parent ? { previous_response_id: spec.parent } : {}),
  };
}

/** What a terminal would act on, or nobody would see, as JSON and Python write it alike. */
const escapeSigns = (json: string): string =>
  json.replace(/[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);

function asCurl(spec: any): string {
  const body = escapeSigns(JSON.stringify(bodyOf(spec))).replace(/'/g, "'\\''");
  return `curl ${serverUrl}/responses${exampleHeader()} -H 'content-type: application/json' -d '${body}'`;
}

/** As Python writes it. */
function asLiteral(value: any): string {
  if (Array.isArray(value)) return `[${value.map(asLiteral).join(", ")}]`;
  if (value !== null && typeof value === "object") return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${asLiteral(each)}`).join(", ")}}`;
  return value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False") : escapeSigns(JSON.stringify(value));
}

function asPython(spec: any): string {
  const given = Object.entries(bodyOf(spec)).map(([name, value]) => `    ${name}=${asLiteral(value)},\n`).join("");
  return `from openai import OpenAI\n\nclient = OpenAI(base_url="${serverUrl}", api_key="${exampleKey()}")\nanswer = client.responses.create(\n${given})\nprint(answer.output_text)\n`;
}

interface EntriesProps {
  entries: Entry[];
  chosen: Entry | null;
  runId: string;
  search: string;
  branch: EntryAction | null;
  turns: Turn[];
  /** Grows when there are more: the list stays the same one. */
  drawn: number;
}

/** Entries in groups, of which only those near the view are in the page: a run may have thousands. */
function Entries({ entries, chosen, runId, search, branch, turns }: EntriesProps) {
  const groups: Entry[][] = [];
  for (let at = 0; at < entries.length; at += GROUP) groups.push(entries.slice(at, at + GROUP));
  const heights = useRef<Heights>({ sum: 0, entries: 0 });
  const [, setMeasured] = useState(false);
  // Once the first ones are drawn, it is known how much room the others need.
  useEffect(() => setMeasured(groups.length > 1), [groups.length > 1]);
  const key = chosen ? `event-${chosen.seq}-${chosen.key}` : "";
  useEffect(() => {
    if (!key) return;
    // The group has to be there first, and those above it may turn out to be of another height.
    const waits = [30, 250].map((wait) => setTimeout(() => document.getElementById(key)?.scrollIntoView({ block: "center" }), wait));
    return () => waits.forEach(clearTimeout);
  }, [key, search]);
  return (
    <div class="entries">
      {groups.map((group, index) => (
        <Group
          key={group[0]!.key} entries={group} chosen={chosen && group.includes(chosen) ? chosen : null} runId={runId} heights={heights.current} branch={branch} turns={turns}
          isLast={index >= groups.length - 1}
        />
      ))}
    </div>
  );
}

/** How high the entries are that were drawn so far: the others are taken to be like them. */
interface Heights {
  sum: number;
  entries: number;
}

interface GroupProps {
  entries: Entry[];
  chosen: Entry | null;
  runId: string;
  heights: Heights;
  branch: EntryAction | null;
  turns: Turn[];
  isLast: boolean;
}

function Group({ entries, chosen, runId, heights, branch, turns, isLast }: GroupProps) {
  const box = useRef<HTMLOListElement>(null);
  const [isNear, setNear] = useState(isLast);
  const height = useRef(0);
  const isShown = isNear || isLast || chosen !== null;
  useEffect(() => {
    const watcher = new IntersectionObserver(([seen]) => setNear(seen!.isIntersecting), { rootMargin: "1500px" });
    watcher.observe(box.current!);
    return () => watcher.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!isShown) return;
    const drawn = box.current!.offsetHeight;
    heights.sum += drawn - height.current;
    if (!height.current) heights.entries += entries.length;
    height.current = drawn;
  });
  const held = height.current || entries.length * (heights.entries ? heights.sum / heights.entries : 120);
  return (
    <ol ref={box} class="group" style={isShown ? undefined : { height: `${held}px` }}>
      {isShown ? entries.map((entry, index) => (
        <>
          {entry.turn && (index === 0 || entries[index - 1]!.turn !== entry.turn) ? <li class="turn" key={`t${entry.turn}`}>Turn {entry.turn}<span class="spent">{spentIn(turns[entry.turn - 1])}</span></li> : null}
          <EntryView key={entry.key} entry={entry} revision={entry.revision} isChosen={entry === chosen} runId={runId} action={branch} />
        </>
      )) : null}
    </ol>
  );
}

/** What a turn of the model has taken: its time, and its tokens where its provider counts them. */
function spentIn(turn: Turn | undefined): string {
  if (!turn || turn.endedAt === null) return "";
  const { usage } = turn;
  return `${duration(turn.endedAt - turn.startedAt)}${usage ? `, ${number(usage.input_tokens)} tokens in, ${number(usage.output_tokens)} out` : ""}`;
}

/** What a run that waits for a person asks, and the run that goes on with the answer. */
function Ending({ id, isWaiting, tenant }: { id: string; isWaiting: boolean; tenant: string }) {
  const [known, setKnown] = useState<OwnedApproval[]>([]);
  useEffect(() => {
    if (!isWaiting) return;
    const own = (each: Approval) => each.response_id === id;
    get<{ data: Approval[] }>("approvals", { limit: 100, tenant }).then((page) => setKnown(page.data.filter(own).map((each) => ({ ...each, tenant }))), () => setKnown([]));
  }, [isWaiting, id, tenant, approvals.value]);
  if (!isWaiting) return null;
  const next = known.find((each) => each.continued_by)?.continued_by;
  return (
    <section aria-label="What waits for a person">
      {next ? <p class="goes-on">Answered. <a href={link(`runs/${next}`)}>See how it goes on</a></p> : null}
      {known.filter((each) => each.state === "pending").map((each) => <ApprovalCard key={each.id} approval={each} answered={(run) => run && go(`runs/${run}`)} />)}
    </section>
  );
}
