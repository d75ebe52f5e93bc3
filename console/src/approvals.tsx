import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, siteAddress } from "./api";
import type { Approval } from "./api_types";
import { answer, approvals, approvalsError, type OwnedApproval, readApprovals, waitingTold } from "./approvals_data";
import { ElicitationForm, type Elicitation, startContent } from "./elicitation";
import { EntryView } from "./entry";
import { duration, tenantName } from "./format";
import { LiveRun } from "./live_run";
import { Markdown } from "./markdown";
import { link } from "./router";
import { inLine, questionOf } from "./run_model";
import { mayUse } from "./session";
import { Empty, Failure, isTooLong, now, parse, Time, useKeys, useTitle, Value, Whole } from "./parts";

const MOST = 20;

export function Approvals() {
  useTitle("Approvals");
  const [done, setDone] = useState<{ text: string; run: string | null } | null>(null);
  /** Where the card was that had the focus last: once it is answered, the next one is there. */
  const at = useRef(0);
  const [most, setMost] = useState(MOST);
  const list = approvals.value;
  const cards = () => [...document.querySelectorAll<HTMLElement>(".approval")];
  const noteFocus = (target: Element) => {
    const card = cards().indexOf(target.closest<HTMLElement>(".approval")!);
    if (card >= 0) at.current = card;
  };
  const step = (by: number) => {
    const next = document.activeElement?.closest(".approval") ? at.current + by : at.current;
    const all = cards();
    all[Math.max(0, Math.min(all.length - 1, next))]?.focus();
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  return (
    <div class="page" onFocusIn={(event) => noteFocus(event.target as Element)}>
      <div class="bar">
        <h1>Approvals</h1>
        <span class="faint">{list?.length ? `${waitingTold.value} waiting` : ""}</span>
      </div>
      <p role="status" class="done">
        {done ? <>{done.text} {done.run && maySeeRuns() ? <a href={link(`runs/${done.run}`)}>Watch the run go on</a> : null}</> : null}
      </p>
      {approvalsError.value ? <Failure error={approvalsError.value} retry={() => void readApprovals()} /> : null}
      {list === null ? (
        approvalsError.value ? null : <p class="faint" role="status">Loading…</p>
      ) : list.length === 0 ? (
        <Empty><p>Nothing waits for a person.</p><p class="faint">Calls that a rule wants approved appear here by themselves.</p></Empty>
      ) : (
        list.slice(0, most).map((each) => <ApprovalCard key={each.id} approval={each} showsRun answered={(run, text) => setDone({ text, run })} />)
      )}
      {list && list.length > most ? <p><button class="quiet" onClick={() => setMost(most + MOST)}>Show more</button></p> : null}
      <p class="faint keys-hint">Keys: <kbd>j</kbd> <kbd>k</kbd> next and previous, <kbd>a</kbd> approve, <kbd>d</kbd> deny, <kbd>r</kbd> reason</p>
    </div>
  );
}

/** What a call is part of, and what its tool declares. */
interface Background {
  question: string;
  description: string;
  effects: string[];
}

interface CardProps {
  approval: OwnedApproval;
  answered: (run: string | null, text: string) => void;
  /** Whether the run up to the call can be unfolded: elsewhere it is what surrounds the card. */
  showsRun?: boolean;
}

export function ApprovalCard({ approval, answered, showsRun = false }: CardProps) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const [background, setBackground] = useState<Background | null>(null);
  const field = useRef<HTMLInputElement>(null);
  const asked = approval.elicitation as Elicitation | undefined;
  const [content, setContent] = useState(() => startContent(asked));
  const signIn = approval.policy === "sign_in" ? approval.question.match(/\/sign-in\/mcp\/[\w-]+/)?.[0] : undefined;
  useEffect(() => {
    if (maySeeRuns()) readBackground(approval).then(setBackground, () => setBackground(null));
  }, [approval.id]);
  const send = async (approve: boolean) => {
    if (isSending) return;
    setSending(true);
    try {
      const run = await answer(approval, approve, reason.trim(), approve && asked?.mode === "form" ? content : undefined);
      answered(run, `${approve ? "Approved" : "Denied"}: ${approval.tool}.`);
    } catch (failure) {
      setError(failure);
      setSending(false);
    }
  };
  const pressed = (event: KeyboardEvent) => {
    // With another key it is the browser's: to mark all of the page is not to approve.
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "a" && !signIn && !asked) void send(true);
    else if (event.key === "d") void send(false);
    else if (event.key === "r") field.current?.focus();
    else return;
    event.preventDefault();
  };
  const given = parse(approval.arguments) ?? approval.arguments;
  const left = approval.expires_at === null ? null : approval.expires_at - now.value;
  const name = approval.server_label ? `${approval.server_label} / ${approval.tool}` : approval.tool;
  return (
    <article class="card approval" tabIndex={0} aria-label={`Approve ${name}?`} onKeyDown={pressed}>
      <div class="head">
        <h2><code>{name}</code></h2>
        {approval.tenant ? <span><span class="faint">Tenant</span> {tenantName(approval.tenant)}</span> : null}
        <span class="fill" />
        <span class={left !== null && left < 300 ? "bad" : "faint"}>{left === null ? "" : left > 0 ? `${duration(left)} left` : "expired"}</span>
      </div>
      <div class="question"><Markdown text={approval.question || "May this call be made?"} /></div>
      <p class="faint">
        Asked by <code>{approval.policy}</code> at <Time at={approval.asked_at} />{maySeeRuns() ? <> in <a href={link(`runs/${approval.response_id}`)}>{background?.question ? `“${inLine(background.question).slice(0, 160)}”` : "this run"}</a></> : null}
      </p>
      {background?.description || background?.effects.length ? (
        <p class="declared">
          {background.description} {background.effects.length ? <span class="effects">Declares: {background.effects.join(", ")}</span> : null}
        </p>
      ) : null}
      <div class="section asked"><h3>Arguments</h3><Whole.Provider value={true}><Value value={approval.arguments} /></Whole.Provider></div>
      {showsRun && maySeeRuns() ? <RunSoFar id={approval.response_id} /> : null}
      {asked ? <ElicitationForm asked={asked} content={content} change={setContent} /> : null}
      {signIn ? <p><a class="button main" href={siteAddress(signIn)} target="_blank" rel="noopener">Sign in</a> <span class="faint">The run goes on once you have.</span></p> : null}
      <label class="reason">
        Reason (the model reads it)
        <input ref={field} value={reason} maxLength={4096} onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
      {isTooLong(given) ? <p class="bad">Not all of the arguments is shown above: they are too long.</p> : null}
      <div class="actions">
        {signIn ? null : <button class="main" disabled={isSending} onClick={() => void send(true)}>{asked ? (asked.mode === "form" ? "Send" : "Done") : "Approve"}</button>}
        <button class="danger" disabled={isSending} onClick={() => void send(false)}>Deny</button>
      </div>
      {error ? <Failure error={error} /> : null}
    </article>
  );
}

async function readBackground(approval: Approval): Promise<Background> {
  const page = await get<{ data: any[] }>(`runs/${encodeURIComponent(approval.response_id)}/events`, { limit: 1 });
  const spec = page.data[0]?.spec;
  const tool = (spec?.tools ?? []).find((each: any) => each.name === approval.tool);
  return { question: questionOf(spec), description: tool?.description ?? "", effects: tool?.effects ?? [] };
}

/** Some may answer, and see nothing else of a run. */
const maySeeRuns = (): boolean => mayUse("responses", "traces");

const LAST = 20;

/** What has happened in a run before it asked, read when somebody wants to know. */
function RunSoFar({ id }: { id: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="so-far" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The run up to here</summary>
      {isOpen ? <LastEntries id={id} /> : null}
    </details>
  );
}

function LastEntries({ id }: { id: string }) {
  const live = useMemo(() => new LiveRun(id), [id]);
  useEffect(() => () => live.stop(), [live]);
  live.drawn.value;
  const entries = live.model.entries.filter((entry) => entry.kind !== "end");
  if (live.error.value) return <Failure error={live.error.value} />;
  if (!live.isRead.value) return <p class="faint" role="status">Loading…</p>;
  return (
    <>
      {entries.length > LAST ? <p class="faint">The last {LAST} of {entries.length}; <a href={link(`runs/${id}`)}>the run</a> has all.</p> : null}
      <ol class="group" tabIndex={0} aria-label="What has happened">
        {entries.slice(-LAST).map((entry) => <EntryView key={entry.key} entry={entry} revision={entry.revision} isChosen={false} runId={id} />)}
      </ol>
    </>
  );
}
