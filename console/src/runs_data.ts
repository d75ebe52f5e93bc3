// The list of runs, and the one feed of their changes that all screens share.
import type { RunLine } from "./api_types";
import { signal } from "@preact/signals";
import { follow, type ServerEvent } from "./api";

/** The last change of a run that the server told. */
export const changes = signal<RunLine | null>(null);
/** Grows when changes may have been missed, and lists have to be read again. */
export const missed = signal(0);
export const isFeedUp = signal(true);

let isStarted = false;

export function watchRuns(): void {
  if (isStarted) return;
  isStarted = true;
  let cursor = "";
  const heard = (event: ServerEvent) => {
    const told = JSON.parse(event.data);
    if (event.event === "ready") {
      // What happened while nobody listened, as between the reading of a list and this moment, is not told again.
      if (!cursor || !told.is_complete) missed.value += 1;
      cursor = told.cursor;
      return;
    }
    cursor = event.id || cursor;
    changes.value = told as RunLine;
  };
  const never = new AbortController();
  follow("runs/changes", () => ({ since: cursor }), heard, never.signal, (up) => (isFeedUp.value = up)).catch(() => {
    isFeedUp.value = false;
    isStarted = false;
  });
}
