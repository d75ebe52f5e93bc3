// What every screen is made of.
import { type ComponentChildren, createContext } from "preact";
import { useContext, useEffect, useLayoutEffect, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { ApiError, get, type Json, type JsonObject, type Query, returned } from "./api";
import { exactTime, number, statusName, time, visible } from "./format";
import { textOf } from "./run_model";

/** The time in seconds, for whatever counts; it only ticks while somebody looks. */
export const now = signal(Date.now() / 1000);
setInterval(() => {
  if (!document.hidden) now.value = Date.now() / 1000;
}, 1000);

export function Status({ status, waiting = false }: { status: string; waiting?: boolean }) {
  const name = waiting ? "waiting" : statusName(status);
  return (
    <span class={`status ${name}`}>
      <span class="dot" aria-hidden="true" />
      {name}
    </span>
  );
}

/** A moment: as short as tells it from now, or `told` otherwise. */
export function Time({ at, told = time }: { at: number; told?: (seconds: number) => string }) {
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={exactTime(at)}>
      {told(at)}
    </time>
  );
}

/** What the server says, with the names that it marks as code. */
export function Said({ text }: { text: string }) {
  return <>{text.split(/`([^`\n]+)`/).map((part, at) => (at % 2 ? <code>{part}</code> : part))}</>;
}

export function Failure({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <p><Said text={error instanceof Error ? error.message : String(error)} /></p>
      {retry ? <button onClick={retry}>Try again</button> : null}
    </div>
  );
}

/** Does what cannot be undone: the first press asks, the second one acts, and who goes elsewhere has not said yes. */
export function Confirm({ label, act, kind = "quiet" }: { label: string; act: () => void; kind?: string }) {
  const [isAsked, ask] = useState(false);
  return <button class={isAsked ? `${kind} danger` : kind} onClick={() => { ask(!isAsked); if (isAsked) act(); }} onBlur={() => ask(false)}>{isAsked ? `${label} for good?` : label}</button>;
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

export function Copy({ text, label = "Copy", kind = "quiet" }: { text: string | (() => string); label?: string; kind?: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      setSaid("Copied");
    } catch {
      setSaid("Cannot copy here");
    }
    setTimeout(() => setSaid(""), 2000);
  };
  return (
    <button type="button" class={kind} onClick={copy}>
      <span aria-live="polite">{said || label}</span>
    </button>
  );
}

export function Code({ text, label }: { text: string; label: string }) {
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={label}>
        <code>{text}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}

const LONGEST = 8000;

/** Whether nothing is folded or cut, but for what is longer than anybody reads: what is approved has to be seen. */
export const Whole = createContext(false);
const WHOLE_TEXT = 20_000;
const WHOLE_LIST = 1000;

/** Whether a value is too long to be shown at once even then. */
export function isTooLong(value: Json | undefined): boolean {
  if (typeof value === "string") return value.length > WHOLE_TEXT;
  if (isLeaf(value ?? null)) return false;
  const inner = Object.values(value as JsonObject);
  return inner.length > WHOLE_LIST || inner.some(isTooLong);
}

export function Text({ text, limit: usual = LONGEST }: { text: string; limit?: number }) {
  const [isWhole, setWhole] = useState(false);
  const limit = useContext(Whole) ? WHOLE_TEXT : usual;
  const shown = visible(isWhole || text.length <= limit ? text : text.slice(0, limit));
  return (
    <>
      <pre class="text" tabIndex={0}>{isDiff(shown) ? diff(shown.trimEnd()) : shown}</pre>
      {text.length > limit && !isWhole ? (
        <button class="quiet" onClick={() => setWhole(true)}>
          Show all {number(text.length)} characters
        </button>
      ) : null}
    </>
  );
}

const isDiff = (text: string): boolean => /^(diff --git |--- .*\n\+\+\+ |@@ -\d)/m.test(text);

function diff(text: string) {
  return text.split("\n").map((line) => {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "hunk" : "";
    return <span class={kind}>{line + "\n"}</span>;
  });
}

/** Any value: JSON is folded, texts are shown as they are, images from the data itself only. */
export function Value({ value }: { value: Json | undefined }) {
  if (typeof value === "string") {
    const parsed = parse(value);
    return parsed === undefined ? <Text text={value} /> : <Tree value={parsed} />;
  }
  if (Array.isArray(value) && value.length && value.every((part) => isPart(part))) {
    return <>{value.map((part) => <Part part={part as JsonObject} />)}</>;
  }
  return <Tree value={value ?? null} />;
}

export function parse(text: string): Json | undefined {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return LONG_NUMBER.test(text) ? JSON.parse(text, keepNumber) : JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A number as it was written, where JavaScript has none that is the same: the ids of many services are as long. */
class WrittenNumber {
  constructor(readonly text: string) {}

  toString(): string {
    return this.text;
  }
}

const LONG_NUMBER = /\d{16}/;

function keepNumber(_: string, value: unknown, context?: { source?: string }): unknown {
  return typeof value === "number" && context?.source !== undefined && String(value) !== context.source ? new WrittenNumber(context.source) : value;
}

const isLeaf = (value: Json): value is null | boolean | number | string => value === null || typeof value !== "object" || value instanceof WrittenNumber;

const isPart = (part: Json): boolean =>
  part !== null && typeof part === "object" && !Array.isArray(part) && /^(input|output)_(text|image|file)$/.test(String(part.type));

function Part({ part }: { part: JsonObject }) {
  const image = part.image_url;
  if (typeof image === "string") {
    if (/^data:image\/(png|jpeg|gif|webp);base64,/.test(image)) return <img class="picture" src={image} alt="Picture in the result" />;
    const kind = /^data:([\w/+.-]+)/.exec(image)?.[1];
    return <p class="faint">{kind ? `A picture that is not shown here: ${kind}` : `A picture from elsewhere, not loaded: ${image.slice(0, 300)}`}</p>;
  }
  return part.text !== undefined ? <Value value={textOf([part])} /> : <Tree value={part} />;
}

const MOST_UNFOLDED = 8;

export function Tree({ value, depth = 0, name }: { value: Json; depth?: number; name?: string }) {
  const key = name === undefined ? null : <span class="key">{name}: </span>;
  if (isLeaf(value)) return <div class="leaf">{key}<Leaf value={value} /></div>;
  const entries: [string, Json][] = Array.isArray(value) ? value.map((each, index) => [String(index), each]) : Object.entries(value);
  const told = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) return <div class="leaf">{key}{Array.isArray(value) ? "[]" : "{}"}</div>;
  if (depth === 0 && isTable(value)) return <Table rows={value as JsonObject[]} />;
  // What is as short as most arguments are needs no fold.
  if (depth === 0 && name === undefined && !Array.isArray(value) && entries.length <= MOST_UNFOLDED) return <div class="branch">{entries.map(([each, inner]) => <Tree key={each} value={inner} depth={1} name={each} />)}</div>;
  return <Branch summary={<>{key}<span class="faint">{told}</span></>} entries={entries} depth={depth} />;
}

function Branch({ summary, entries, depth }: { summary: ComponentChildren; entries: [string, Json][]; depth: number }) {
  const isWhole = useContext(Whole);
  const [isOpen, setOpen] = useState(isWhole || depth === 0 || (depth < 3 && entries.length <= 8));
  const [most, setMost] = useState(isWhole ? WHOLE_LIST : 100);
  return (
    <details class="branch" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {isOpen ? entries.slice(0, most).map(([key, each]) => <Tree key={key} value={each} depth={depth + 1} name={key} />) : null}
      {isOpen && entries.length > most ? (
        <button class="quiet" onClick={() => setMost(most * 10)}>{number(entries.length - most)} more</button>
      ) : null}
    </details>
  );
}

function Leaf({ value }: { value: Json }) {
  if (typeof value !== "string") return <span class="literal">{String(value)}</span>;
  if (value.length > 120 || value.includes("\n")) return <Text text={value} limit={2000} />;
  return <span class="string">{value}</span>;
}

function isTable(value: Json): boolean {
  if (!Array.isArray(value) || value.length < 2) return false;
  const plain = (row: Json) =>
    row !== null && typeof row === "object" && !Array.isArray(row) && Object.keys(row).length <= 12 &&
    Object.values(row).every(isLeaf);
  const names = (row: Json) => Object.keys(row as JsonObject).join();
  return value.every(plain) && value.every((row) => names(row) === names(value[0]!));
}

function Table({ rows }: { rows: JsonObject[] }) {
  const names = Object.keys(rows[0]!);
  const [most, setMost] = useState(useContext(Whole) ? WHOLE_LIST : 100);
  const areFigures = names.map((name) => rows.every((row) => typeof row[name] === "number"));
  const side = (at: number) => (areFigures[at] ? "right" : undefined);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead><tr>{names.map((name, at) => <th scope="col" class={side(at)}>{name}</th>)}</tr></thead>
        <tbody>
          {rows.slice(0, most).map((row) => <tr>{names.map((name, at) => <td class={side(at)}>{String(row[name] ?? "")}</td>)}</tr>)}
        </tbody>
      </table>
      {rows.length > most ? <button class="quiet" onClick={() => setMost(most * 10)}>{number(rows.length - most)} more</button> : null}
    </div>
  );
}

/** Handles keys while a screen is shown, unless somebody types. */
export function useKeys(keys: Record<string, (event: KeyboardEvent) => void>): void {
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.matches("textarea, select, input:not([type=checkbox])")) return;
      if (target.closest("[role=dialog], dialog")) return;
      // What is focused has the first right to this key: a link is opened, a button pressed.
      if (event.key === "Enter" && target.closest("a, button, summary")) return;
      const act = keys[event.key];
      if (act) {
        event.preventDefault();
        act(event);
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  });
}

export function useTitle(title: string): void {
  useEffect(() => {
    screenTitle.value = title;
  }, [title]);
}

export const screenTitle = signal("");

export interface Loaded<T> {
  value: T | null;
  error: unknown;
  reload: () => void;
}

/** What `read` answers, asked again whenever `key` changes or one wants it. */
export function useLoaded<T>(read: () => Promise<T>, key: string = ""): Loaded<T> {
  const [state, setState] = useState<{ value: T | null; error: unknown }>({ value: null, error: null });
  const [turn, setTurn] = useState(0);
  const back = returned.value;
  useEffect(() => {
    let isWanted = true;
    read().then(
      (value) => isWanted && setState({ value, error: null }),
      (error) => isWanted && setState((known) => ({ value: known.value, error })),
    );
    return () => {
      isWanted = false;
    };
  }, [key, turn, back]);
  return { ...state, reload: () => setTurn((before) => before + 1) };
}

export interface LoadedList<T> extends Loaded<T[]> {
  /** Reads the next entries, where there are any. */
  more: (() => void) | null;
}

const PAGE = 100;

/** The first entries of a list, and more of them when somebody wants to see them. */
export function useList<T>(path: string, query: Query = {}): LoadedList<T> {
  const asked = `${path} ${JSON.stringify(query)}`;
  const [wanted, want] = useState({ asked, pages: 1 });
  const pages = wanted.asked === asked ? wanted.pages : 1;
  const { value, error, reload } = useLoaded(async () => {
    const data: T[] = [];
    let after: string | undefined;
    for (let read = 0; read < pages; read += 1) {
      const page = await get<{ data: T[]; last_id?: string | null; has_more?: boolean }>(path, { limit: PAGE, ...query, after });
      data.push(...page.data);
      after = page.has_more && page.last_id ? page.last_id : undefined;
      if (!after) break;
    }
    return { data, hasMore: after !== undefined };
  }, `${asked} ${pages}`);
  return { value: value?.data ?? null, error, reload, more: value?.hasMore ? () => want({ asked, pages: pages + 1 }) : null };
}

export const More = <T,>({ of }: { of: LoadedList<T> }) => (of.more ? <button class="quiet" onClick={of.more}>Show more</button> : null);

/** A part of a screen that is read from the server: its failure is its own, and that one's key is not for it is none. */
export function Loading<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }) {
  if (of.error instanceof ApiError && of.error.code === "insufficient_scope") return <p class="faint"><Said text={of.error.message} /></p>;
  if (of.error) return <Failure error={of.error} retry={of.reload} />;
  if (of.value === null) return <p class="faint" role="status">Loading…</p>;
  return <>{children(of.value)}</>;
}

/** `figures` is the first of the columns that have figures. */
export function Grid({ label, head, rows, figures = head.length }: { label: string; head: ComponentChildren[]; rows: ComponentChildren[][]; figures?: number }) {
  // On a phone each row stands for itself, with the names beside its cells; figures are compared in columns.
  const stacks = figures === head.length;
  const side = (at: number) => (at >= figures ? "right" : undefined);
  return (
    <div class={`scroll grid${stacks ? " stacks" : ""}`} tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead><tr>{head.map((name, at) => <th scope="col" class={side(at)}>{name}</th>)}</tr></thead>
        <tbody>{rows.map((row) => <tr>{row.map((cell, at) => <td class={side(at)} data-name={typeof head[at] === "string" ? head[at] : ""}>{cell}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}
