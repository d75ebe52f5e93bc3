// Requests to the server that this page is from. Addresses are relative to the page, whatever prefix a proxy has put before it.

import { signal } from "@preact/signals";

/** Whether the server has answered when it was asked last; a proxy that cannot reach it answers for itself. */
export const isReachable = signal(true);
/** Grows when the server is there again after it was not: what could not be read is read then. */
export const returned = signal(0);

function tell(isThere: boolean): void {
  if (isThere && !isReachable.value) returned.value += 1;
  isReachable.value = isThere;
}

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

const base = location.pathname.endsWith("/") ? location.pathname : `${location.pathname}/`;

export const serverUrl = `${location.origin}${base}v1`;

/** A page of the server that is not of this one. */
export const siteAddress = (path: string): string => `${base.replace(/\/$/, "")}${path}`;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export type Query = Record<string, string | number | boolean | undefined | null>;

export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `${base}v1/${path}${text ? `?${text}` : ""}`;
}

async function send(method: string, url: string, body?: unknown, stop?: AbortSignal): Promise<Response> {
  const isForm = body instanceof FormData;
  const headers: Record<string, string> = body === undefined || isForm ? {} : { "content-type": "application/json" };
  let answer: Response;
  try {
    const sent = body === undefined ? null : isForm ? body : JSON.stringify(body);
    answer = await fetch(url, { method, headers, body: sent, signal: stop ?? null });
  } catch (error) {
    if (stop?.aborted) throw error;
    tell(false);
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  const fault = answer.ok ? {} : ((await answer.json().catch(() => ({})))?.error ?? {});
  tell(fault.code !== undefined || ![502, 503, 504].includes(answer.status));
  if (answer.ok) return answer;
  if (answer.status === 401) window.dispatchEvent(new Event("signed-out"));
  throw new ApiError(answer.status, fault.code ?? "error", fault.message ?? `The server answered ${answer.status}.`);
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return (await send("GET", address(path, query), undefined, signal)).json();
}

/** Every entry of a list, however many pages it has. */
export async function getAll<T extends { id?: string }>(path: string, query: Query = {}): Promise<T[]> {
  const found: T[] = [];
  for (let after: string | undefined; ; ) {
    const page = await get<{ data: T[]; last_id?: string | null; has_more?: boolean }>(path, { limit: 100, ...query, after });
    found.push(...page.data);
    if (!page.has_more || !page.last_id) return found;
    after = page.last_id;
  }
}

export async function post<T>(path: string, body: unknown = {}): Promise<T> {
  const answer = await send("POST", address(path), body);
  return answer.status === 204 ? (undefined as T) : answer.json();
}

export async function remove<T>(path: string): Promise<T> {
  const answer = await send("DELETE", address(path));
  return answer.status === 204 ? (undefined as T) : answer.json();
}

export interface ServerEvent {
  event: string;
  data: string;
  id: string;
}

/** The events of a stream, until it ends. `EventSource` cannot tell why a stream was refused, so this reads it by `fetch`. */
export async function* readEvents(answer: Response): AsyncGenerator<ServerEvent> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop()!;
    for (const block of blocks) {
      const found: ServerEvent = { event: "message", data: "", id: "" };
      const data: string[] = [];
      for (const line of block.split(/\r?\n/)) {
        const colon = line.indexOf(":");
        if (colon < 1) continue;
        const text = line.slice(colon + 1).replace(/^ /, "");
        if (line.startsWith("data")) data.push(text);
        else if (line.startsWith("event")) found.event = text;
        else if (line.startsWith("id")) found.id = text;
      }
      found.data = data.join("\n");
      if (data.length) yield found;
    }
  }
}

export async function openStream(path: string, query: Query, signal: AbortSignal): Promise<AsyncGenerator<ServerEvent>> {
  return readEvents(await send("GET", address(path, query), undefined, signal));
}

export async function postStream(path: string, body: unknown, signal: AbortSignal): Promise<AsyncGenerator<ServerEvent>> {
  return readEvents(await send("POST", address(path), body, signal));
}

/** Ends when the page goes out of sight. */
function whileSeen(): AbortSignal {
  const seen = new AbortController();
  document.addEventListener("visibilitychange", () => document.hidden && seen.abort(), { signal: seen.signal });
  return seen.signal;
}

function untilSeen(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const look = () => (!document.hidden || signal.aborted) && resolve();
    document.addEventListener("visibilitychange", look, { signal });
    signal.addEventListener("abort", look);
    look();
  });
}

/**
 * Reads a stream for as long as `signal` lets it, and connects again after the server has gone away. `query` is asked each time,
 * so that a stream goes on behind what was read. `heard` returns true when there is nothing more to come. A page that nobody sees
 * holds no stream: a browser keeps six connections to a server, for all of its tabs.
 */
export async function follow(
  path: string,
  query: () => Query,
  heard: (event: ServerEvent) => boolean | void,
  signal: AbortSignal,
  told: (connected: boolean) => void = () => undefined,
): Promise<void> {
  let wait = 500;
  while (!signal.aborted) {
    await untilSeen(signal);
    const seen = whileSeen();
    try {
      const events = await openStream(path, query(), AbortSignal.any([signal, seen]));
      told(true);
      for await (const event of events) {
        wait = 500;
        if (heard(event)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (seen.aborted) continue;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
      told(false);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}
