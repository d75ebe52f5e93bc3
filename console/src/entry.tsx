// One thing that happened in a run.
import { Component } from "preact";
import { useState } from "preact/hooks";
import { get } from "./api";
import type { CallExplanation } from "./api_types";
import { clockTime, duration, endSentence } from "./format";
import { Markdown } from "./markdown";
import { link } from "./router";
import type { Call, Entry } from "./run_model";
import { Copy, Failure, Said, Time, useLoaded, Value } from "./parts";

interface Props {
  entry: Entry;
  /** Nothing for what is known without its run. */
  runId: string | null;
  revision: number;
  isChosen: boolean;
  action?: EntryAction | null;
}

/** What can be done with some entries, where they stand. */
export interface EntryAction {
  name: string;
  takes: Entry["kind"][];
  act: (entry: Entry) => void;
}

export class EntryView extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const known = this.props;
    return next.revision !== known.revision || next.isChosen !== known.isChosen || next.entry !== known.entry || !next.action !== !known.action;
  }

  // What is inside gets the revision, too: components whose properties stay the same are not drawn again.
  override render({ entry, runId, isChosen, revision, action }: Props) {
    return (
      <li id={`event-${entry.seq}-${entry.key}`} class={`entry ${entry.kind} ${entry.tone}${isChosen ? " chosen" : ""}`} aria-current={isChosen ? "true" : undefined}>
        <div class="head">
          <span class="who">{nameOf(entry)}</span>
          {entry.call ? <CallState call={entry.call} revision={revision} /> : null}
          <span class="fill" />
          {entry.kind === "message" && entry.until !== null ? <Copy kind="link" text={() => entry.text} /> : null}
          {action?.takes.includes(entry.kind) ? <button class="link" onClick={() => action.act(entry)}>{action.name}</button> : null}
          <span class="place">
            {entry.at ? <Time at={entry.at} told={clockTime} /> : null}
            {runId === null ? null : <a class="anchor" href={link(`runs/${runId}`, { event: entry.seq })} aria-label={`Link to event ${entry.seq}`}>#{entry.seq}</a>}
          </span>
        </div>
        <Body entry={entry} runId={runId} revision={revision} />
      </li>
    );
  }
}

function nameOf(entry: Entry): string {
  switch (entry.kind) {
    case "message":
      return "Answer";
    case "reasoning":
      return "Reasoning";
    case "call":
      return entry.call!.name;
    case "end":
      return "The end";
    default:
      return entry.title;
  }
}

/** Of a call that has not been performed. */
const STATES: Record<string, string> = { ask: "waits for a person", client: "for the client", deny: "denied" };

function CallState({ call }: { call: Call; revision: number }) {
  const took = call.startedAt !== null && call.endedAt !== null ? duration(call.endedAt - call.startedAt) : "";
  const state = call.outcome || (call.startedAt !== null ? "running" : (STATES[call.verdict] ?? ""));
  return <span class={`state ${call.outcome}`}>{[state.replace("_", " "), took].filter(Boolean).join(", ")}</span>;
}

function Body({ entry, runId, revision }: { entry: Entry; runId: string | null; revision: number }) {
  switch (entry.kind) {
    case "message":
      return <Markdown text={entry.text} />;
    case "input":
      return entry.text ? <><Markdown text={entry.text} /><Attachments content={entry.data} /></> : entry.data === null ? null : <Value value={entry.data} />;
    case "reasoning":
      return <Markdown text={entry.text || "(hidden by the provider)"} />;
    case "call":
      return <CallBody call={entry.call!} runId={runId} revision={revision} />;
    case "end":
      return <p><Said text={endSentence(entry.title, entry.text)} /></p>;
    case "note":
      return entry.text ? <p><Said text={entry.text} /></p> : null;
    default:
      return <Value value={entry.data} />;
  }
}

/** What goes along with the text of a message. */
function Attachments({ content }: { content: Entry["data"] }) {
  const others = Array.isArray(content) ? content.filter((part: any) => /_(image|file)$/.test(part?.type ?? "")) : [];
  return others.length ? <div class="section"><Value value={others} /></div> : null;
}

const VERDICTS: Record<string, string> = { allow: "allowed", deny: "denied", ask: "a person is asked", client: "handed to the client" };

/** Which policy has decided about a call, or would, and why. */
export function Verdict({ verdict, policy, reason }: { verdict: string; policy: string; reason: string }) {
  return <span class={`verdict ${verdict}`}><strong>{VERDICTS[verdict] ?? verdict}</strong> by <code>{policy}</code>{reason ? <>: <Said text={reason} /></> : ""}</span>;
}

function CallBody({ call, runId }: { call: Call; runId: string | null; revision: number }) {
  const [showsAll, show] = useState(false);
  const progress = showsAll ? call.progress : call.progress.slice(-5);
  return (
    <>
      <div class="section"><p class="part">Arguments</p><Value value={call.arguments || "{}"} /></div>
      {call.verdict ? <p class="section"><Verdict verdict={call.verdict} policy={call.policy} reason={call.reason} /></p> : null}
      {progress.length ? (
        <div class="section">
          <p class="part">Progress</p>
          {call.progress.length > progress.length ? <button class="quiet" onClick={() => show(true)}>Show all {call.progress.length}</button> : null}
          <pre class="text" tabIndex={0}>{progress.join("\n")}</pre>
        </div>
      ) : null}
      {call.output !== null ? <div class="section"><p class="part">Result</p><Value value={call.output} /></div> : null}
      {call.verdict && runId !== null ? <Explanation runId={runId} callId={call.id} /> : null}
    </>
  );
}

/** What the audit has of a call: which rule decided, who approved, what came of it. Read when somebody wants to know. */
function Explanation({ runId, callId }: { runId: string; callId: string }) {
  const [isOpen, setOpen] = useState(false);
  const path = `runs/${encodeURIComponent(runId)}/explain/${encodeURIComponent(callId)}`;
  const told = useLoaded(async () => (isOpen ? get<CallExplanation>(path) : null), `${isOpen}`);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Explain</summary>
      {told.error ? <Failure error={told.error} /> : null}
      <ol>{(told.value?.entries ?? []).map((each) => <li><Time at={each.at} /> <Said text={each.said} /></li>)}</ol>
    </details>
  );
}
