import type { RunLine } from "./api_types";
import { useEffect, useRef, useState } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { get } from "./api";
import { compact, duration, hasEnded, number, statusName, tenantName, tenantOf } from "./format";
import { adjust, go, link, place } from "./router";
import { changes, isFeedUp, missed } from "./runs_data";
import { isOperator } from "./session";
import { inLine } from "./run_model";
import { Empty, Failure, now, Said, Status, Time, useKeys, useLoaded, useTitle } from "./parts";

const PAGE = 100;
const STATUSES = ["in_progress", "completed", "failed", "incomplete", "cancelled", "requires_action"];
const FILTERS = ["status", "model", "agent", "tenant", "q", "from", "waiting"] as const;
const NO_FILTERS = Object.fromEntries(FILTERS.map((name) => [name, null]));

type Filters = Record<(typeof FILTERS)[number], string>;

function readFilters(): Filters {
  return Object.fromEntries(FILTERS.map((name) => [name, place.value.query.get(name) ?? ""])) as Filters;
}

const SPANS: Record<string, number> = { "1h": 3600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000 };

function toQuery(filters: Filters) {
  const { from, ...others } = filters;
  return { ...others, created_after: SPANS[from] ? Math.floor(Date.now() / 1000) - SPANS[from] : undefined };
}

function fits(row: RunLine, filters: Filters): boolean {
  const text = filters.q.toLowerCase();
  return (
    (!filters.status || row.status === filters.status) &&
    (!filters.model || row.model === filters.model) &&
    (!filters.agent || row.agent === filters.agent) &&
    (!filters.tenant || row.tenant === filters.tenant) &&
    (!filters.waiting || row.waiting) &&
    (!text || `${row.prompt} ${row.error} ${row.id}`.toLowerCase().includes(text))
  );
}

/** The list with a run as it is now: newest first, without what fits the filters no more, and without what stands further below than was read. */
function put(known: RunLine[], row: RunLine, filters: Filters, hasMore: boolean): RunLine[] {
  const index = known.findIndex((each) => each.id === row.id);
  // What it was asked stays, and the server has found it by all of that.
  if (index >= 0) return fits(row, { ...filters, q: "" }) ? known.with(index, row) : known.toSpliced(index, 1);
  const older = known.findIndex((each) => each.created_at <= row.created_at);
  if (!fits(row, filters) || (older < 0 && hasMore)) return known;
  return known.toSpliced(older < 0 ? known.length : older, 0, row);
}

export function Runs() {
  useTitle("Runs");
  const filters = readFilters();
  const asked = JSON.stringify(filters);
  const rows = useSignal<RunLine[] | null>(null);
  const hasMore = useSignal(false);
  const error = useSignal<unknown>(null);
  const held = useSignal<RunLine[]>([]);
  const isPaused = useSignal(false);

  const wanted = useRef("");
  wanted.current = asked;
  const load = async (after?: string) => {
    try {
      const page = await get<{ data: RunLine[]; has_more: boolean }>("runs", { ...toQuery(filters), limit: PAGE, after });
      // Somebody has chosen other filters meanwhile.
      if (wanted.current !== asked) return;
      rows.value = after ? [...(rows.value ?? []), ...page.data] : page.data;
      hasMore.value = page.has_more;
      error.value = null;
    } catch (failure) {
      if (wanted.current === asked) error.value = failure;
    }
  };
  useEffect(() => {
    rows.value = null;
    held.value = [];
    void load();
  }, [asked, missed.value]);

  const merge = (row: RunLine) => {
    rows.value = put(rows.value ?? [], row, filters, hasMore.value);
  };
  useEffect(
    () =>
      changes.subscribe((row) => {
        if (!row || rows.peek() === null) return;
        if (isPaused.peek()) held.value = [...held.peek().filter((each) => each.id !== row.id), row];
        else merge(row);
      }),
    [asked],
  );
  const pause = () => {
    if (isPaused.value) held.value.forEach(merge);
    held.value = [];
    isPaused.value = !isPaused.value;
  };
  return (
    <div class="page wide">
      <div class="bar">
        <h1>Runs</h1>
        <span class="faint" role="status">
          {isFeedUp.value ? (isPaused.value ? `Paused${held.value.length ? `, ${held.value.length} new` : ""}` : "Live") : "Not connected"}
        </span>
        <button onClick={pause} aria-pressed={isPaused.value}>{isPaused.value ? "Go on" : "Pause"}</button>
      </div>
      <FilterBar filters={filters} rows={rows.value ?? []} />
      {error.value ? <Failure error={error.value} retry={() => void load()} /> : null}
      {rows.value === null ? (
        error.value ? null : <p class="faint" role="status">Loading…</p>
      ) : rows.value.length === 0 ? (
        FILTERS.some((name) => filters[name]) ? (
          <Empty><p>No run fits these filters.</p><p><button onClick={() => adjust(NO_FILTERS)}>Clear the filters</button></p></Empty>
        ) : (
          <Empty><p>Nothing has run here yet.</p><p><a href={link("")}>Watch the demo</a> or <a href={link("chat")}>ask a model</a>.</p></Empty>
        )
      ) : (
        <RunTable rows={rows.value} more={hasMore.value ? () => load(rows.value!.at(-1)!.id) : null} hasTenants={isOperator() && (!!filters.tenant || rows.value.some((row) => tenantOf(row.tenant)))} />
      )}
    </div>
  );
}

/** Milliseconds after the last key before the server is asked: it looks through the questions of all runs. */
const REST = 300;

const AGENT = "agent:";

/** What can be chosen: what the server offers, and all that was listed so far, so that a filter does not take away the others. */
const seen = { model: new Set<string>(), agent: new Set<string>(), tenant: new Set<string>() };

function FilterBar({ filters, rows }: { filters: Filters; rows: RunLine[] }) {
  const search = useRef<HTMLInputElement>(null);
  useKeys({ "/": () => search.current?.focus() });
  // What is typed stays in its box while rows come, and is looked for once somebody rests.
  const [typed, setTyped] = useState(filters.q);
  const timer = useRef(0);
  const find = (text: string, wait: number) => {
    setTyped(text);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => adjust({ q: text }), wait);
  };
  useEffect(() => {
    setTyped(filters.q);
    return () => clearTimeout(timer.current);
  }, [filters.q]);
  const models = useLoaded(() => get<{ data: { id: string }[] }>("models"));
  for (const { id } of models.value?.data ?? []) (id.startsWith(AGENT) ? seen.agent : seen.model).add(id.replace(AGENT, ""));
  const known = (name: "model" | "agent" | "tenant") => {
    for (const row of rows) seen[name].add(row[name]);
    return [...new Set([...seen[name], filters[name]])].filter(Boolean).sort();
  };
  const choice = (name: keyof Filters, label: string, options: [string, string][]) => (
    <label>
      {label}
      <select value={filters[name]} onChange={(event) => adjust({ [name]: event.currentTarget.value })}>
        <option value="">any</option>
        {options.map(([value, text]) => <option value={value}>{text}</option>)}
      </select>
    </label>
  );
  const same = (names: string[]): [string, string][] => names.map((name) => [name, name]);
  const tenants = known("tenant");
  return (
    <form class="filters" onSubmit={(event) => event.preventDefault()} role="search">
      <label class="grow">
        Search
        <input
          ref={search} type="search" value={typed} placeholder="a question, an error or an id"
          onInput={(event) => find(event.currentTarget.value, REST)} onChange={(event) => find(event.currentTarget.value, 0)}
        />
      </label>
      {choice("status", "Status", STATUSES.map((status) => [status, statusName(status)]))}
      {choice("model", "Model", same(known("model")))}
      {choice("agent", "Agent", same(known("agent")))}
      {isOperator() && tenants.some(tenantOf) ? choice("tenant", "Tenant", tenants.map((each) => [each, tenantName(each)])) : null}
      {choice("from", "Time", [["1h", "last hour"], ["1d", "last day"], ["7d", "last week"], ["30d", "last 30 days"]])}
      <label class="check">
        <input type="checkbox" checked={filters.status === "failed"} onChange={(event) => adjust({ status: event.currentTarget.checked ? "failed" : "" })} />
        failed only
      </label>
      <label class="check">
        <input type="checkbox" checked={!!filters.waiting} onChange={(event) => adjust({ waiting: event.currentTarget.checked ? "true" : "" })} />
        waits for a person
      </label>
    </form>
  );
}

const ROW = 44;
const SPARE = 12;

/** Only the rows in view are in the page, so thousands stay quick. */
function RunTable({ rows, more, hasTenants }: { rows: RunLine[]; more: (() => Promise<void>) | null; hasTenants: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 900 });
  /** By its id: others may come above it. */
  const [chosenId, choose] = useState("");
  const chosen = rows.findIndex((row) => row.id === chosenId);
  const isLoading = useRef(false);
  const measure = () => {
    const element = box.current;
    if (element) setView({ top: Math.max(0, -element.getBoundingClientRect().top), height: window.innerHeight });
  };
  useEffect(() => {
    measure();
    window.addEventListener("scroll", measure, { passive: true });
    window.addEventListener("resize", measure);
    return () => {
      window.removeEventListener("scroll", measure);
      window.removeEventListener("resize", measure);
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW) - SPARE);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + SPARE);
  useEffect(() => {
    if (more && last >= rows.length - SPARE && !isLoading.current) {
      isLoading.current = true;
      void more().finally(() => (isLoading.current = false));
    }
  }, [last, rows.length]);
  const step = (by: number) => {
    const next = Math.min(rows.length - 1, Math.max(0, chosen + by));
    choose(rows[next]!.id);
    const element = box.current!;
    const y = element.getBoundingClientRect().top + next * ROW;
    if (y < 120 || y > window.innerHeight - 80) window.scrollBy({ top: y - window.innerHeight / 2 });
  };
  useKeys({
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
    Enter: () => chosen >= 0 && go(`runs/${rows[chosen]!.id}`),
  });
  return (
    <div ref={box}>
      <table class="runs" aria-rowcount={rows.length + 1}>
        <thead>
          <tr>
            <th scope="col" class="state">Status</th><th scope="col" class="asked">Asked</th><th scope="col" class="model">Model</th>
            {hasTenants ? <th scope="col" class="tenant">Tenant</th> : null}
            <th scope="col" class="right tokens">Tokens</th><th scope="col" class="right took">Took</th><th scope="col" class="right began">Began</th>
          </tr>
        </thead>
        <tbody>
          {first ? <tr style={{ height: `${first * ROW}px` }} aria-hidden="true" /> : null}
          {rows.slice(first, last).map((row, index) => (
            <Row key={row.id} row={row} number={first + index} isChosen={first + index === chosen} hasTenants={hasTenants} />
          ))}
          {last < rows.length ? <tr style={{ height: `${(rows.length - last) * ROW}px` }} aria-hidden="true" /> : null}
        </tbody>
      </table>
      <p class="faint" role="status">{number(rows.length)} runs{more ? ", more below" : ""}</p>
    </div>
  );
}

function Row({ row, number: at, isChosen, hasTenants }: { row: RunLine; number: number; isChosen: boolean; hasTenants: boolean }) {
  const took = (row.ended_at ?? (hasEnded(row.status) ? row.created_at : now.value)) - row.created_at;
  return (
    <tr aria-rowindex={at + 2} class={isChosen ? "chosen" : ""}>
      <td class="state"><Status status={row.status} waiting={row.waiting} /></td>
      <td class="asked">
        <div dir="auto">
          <a href={link(`runs/${row.id}`)}>{inLine(row.prompt || row.id).slice(0, 300)}</a>
          {row.error ? <span class="bad" title={row.error} dir="auto"><Said text={row.error.slice(0, 200)} /></span> : null}
        </div>
      </td>
      <td class="name model" title={row.model}>{row.agent ? `${row.agent} · ` : ""}{row.model}</td>
      {hasTenants ? <td class="name tenant" title={tenantName(row.tenant)}>{tenantName(row.tenant)}</td> : null}
      <td class="right tokens">{row.tokens ? compact(row.tokens) : ""}</td>
      <td class="right took">{duration(took)}</td>
      <td class="right began"><Time at={row.created_at} /></td>
    </tr>
  );
}
