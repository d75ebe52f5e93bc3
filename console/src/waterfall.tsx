// When what happened: a bar for each turn of the model and each call, on one axis. A bar leads to its event.
import { useEffect, useRef } from "preact/hooks";
import { duration, number } from "./format";
import type { RunModel } from "./run_model";

interface Bar {
  label: string;
  kind: string;
  seq: number;
  from: number;
  first: number | null;
  to: number | null;
}

function bars(model: RunModel): Bar[] {
  const found: Bar[] = model.turns.map((turn) => ({
    label: `Turn ${turn.number}`, kind: turn.error ? "bad" : "model", seq: turn.seq, from: turn.startedAt, first: turn.firstAt, to: turn.endedAt,
  }));
  for (const entry of model.entries) {
    const call = entry.call;
    const from = call?.startedAt ?? call?.judgedAt;
    if (call && from !== null && from !== undefined) {
      found.push({ label: call.name, kind: entry.tone === "bad" ? "bad" : "call", seq: entry.seq, from, first: null, to: call.endedAt ?? (call.startedAt === null ? from : null) });
    }
  }
  return found.sort((a, b) => a.from - b.from || a.seq - b.seq);
}

const MOST = 400;

/** The bars that are drawn: those around the chosen event, else the first ones, or while it runs the last. */
function around(all: Bar[], chosen: number | null, isOver: boolean): Bar[] {
  if (chosen === null || all.length <= MOST) return isOver ? all.slice(0, MOST) : all.slice(-MOST);
  const place = all.findLastIndex((bar) => bar.seq <= chosen);
  const first = Math.max(0, Math.min(place - MOST / 2, all.length - MOST));
  return all.slice(first, first + MOST);
}

interface Props {
  model: RunModel;
  drawn: number;
  now: number;
  chosen: number | null;
  choose: (seq: number) => void;
}

export function Waterfall({ model, now, chosen, choose }: Props) {
  const end = model.endedAt ?? Math.max(model.lastAt, now);
  const whole = Math.max(end - model.startedAt, 0.001);
  const all = bars(model);
  const shown = around(all, chosen, model.isOver);
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => {
    // Only the list is scrolled: the page goes to the event itself.
    const bar = list.current!.querySelector<HTMLElement>("button.chosen")?.parentElement;
    if (bar) list.current!.scrollTop = bar.offsetTop - list.current!.offsetTop - list.current!.clientHeight / 2;
  }, [chosen, shown.length]);
  const share = (from: number, to: number) => `${Math.max(0, Math.min(100, ((to - from) / whole) * 100))}%`;
  return (
    <section class="waterfall" aria-label="Waterfall">
      <div class="axis" aria-hidden="true">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => <span>{duration(whole * part)}</span>)}
      </div>
      <ol ref={list} tabIndex={0} aria-label="Turns and calls in time">
        {shown.map((bar) => (
          <li key={`${bar.kind}${bar.seq}`}>
            <button class={bar.seq === chosen ? "chosen" : ""} onClick={() => choose(bar.seq)}>
              <span class="label">{bar.label}</span>
              <span class="track">
                <span class={`span ${bar.kind}`} style={{ left: share(model.startedAt, bar.from), width: share(bar.from, bar.to ?? end) }}>
                  {bar.first === null ? null : <span class="wait" style={{ width: `${((bar.first - bar.from) / Math.max((bar.to ?? end) - bar.from, 0.001)) * 100}%` }} />}
                </span>
              </span>
              <span class="took">{bar.to === null ? "…" : duration(bar.to - bar.from)}</span>
            </button>
          </li>
        ))}
      </ol>
      {all.length > MOST ? <p class="faint">{MOST} of {number(all.length)} are shown: {chosen !== null ? "those around the chosen event" : model.isOver ? "the first ones" : "the last ones"}.</p> : null}
    </section>
  );
}
