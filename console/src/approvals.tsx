import { useEffect, useRef, useState } from "preact/hooks";
import { get, siteAddress } from "./api";
import type { Approval } from "./api_types";
import { answer, approvals, approvalsError, type OwnedApproval, readApprovals } from "./approvals_data";
import { ElicitationForm, type Elicitation, startContent } from "./elicitation";
import { duration, visible } from "./format";
import { Markdown } from "./markdown";
import { link } from "./router";
import { Empty, Failure, now, Time, useKeys, useTitle, Value } from "./parts";

export function Approvals() {
  useTitle("Approvals");
  const [done, setDone] = useState<{ text: string; run: string | null } | null>(null);
  const [at, setAt] = useState(0);
  const list = approvals.value;
  const step = (by: number) => {
    const next = Math.min((list?.length ?? 1) - 1, Math.max(0, at + by));
    setAt(next);
    document.querySelectorAll<HTMLElement>(".approval")[next]?.focus();
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  return (
    <div class="page">
      <div class="bar">
        <h1>Approvals</h1>
        <span class="faint">{list?.length ? `${list.length} waiting` : ""}</span>
      </div>
      <p role="status" class="done">
        {done ? <>{done.text} {done.run ? <a href={link(`runs/${done.run}`)}>Watch the run go on</a> : null}</> : null}
      </p>
      {approvalsError.value ? <Failure error={approvalsError.value} retry={() => void readApprovals()} /> : null}
      {list === null ? (
        approvalsError.value ? null : <p class="faint" role="status">Loading…</p>
      ) : list.length === 0 ? (
        <Empty><p>Nothing waits for a person.</p><p class="faint">Calls that a rule wants approved appear here by themselves.</p></Empty>
      ) : (
        list.map((each) => <ApprovalCard key={each.id} approval={each} answered={(run, text) => setDone({ text, run })} />)
      )}
      <p class="faint keys-hint">Keys: <kbd>j</kbd> <kbd>k</kbd> next and previous, <kbd>a</kbd> approve, <kbd>d</kbd> deny, <kbd>r</kbd> reason</p>
    </div>
  );
}

interface Declared {
  description: string;
  effects: string[];
}

export function ApprovalCard({ approval, answered }: { approval: OwnedApproval; answered: (run: string | null, text: string) => void }) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const [declared, setDeclared] = useState<Declared | null>(null);
  const field = useRef<HTMLInputElement>(null);
  const asked = approval.elicitation as Elicitation | undefined;
  const [content, setContent] = useState(() => startContent(asked));
  const signIn = approval.policy === "sign_in" ? approval.question.match(/\/sign-in\/mcp\/[\w-]+/)?.[0] : undefined;
  useEffect(() => {
    readDeclaration(approval).then(setDeclared, () => setDeclared(null));
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
    if (event.target !== event.currentTarget) return;
    if (event.key === "a" && !signIn && !asked) void send(true);
    else if (event.key === "d") void send(false);
    else if (event.key === "r") field.current?.focus();
    else return;
    event.preventDefault();
  };
  const left = approval.expires_at === null ? null : approval.expires_at - now.value;
  const name = approval.server_label ? `${approval.server_label} / ${approval.tool}` : approval.tool;
  return (
    <article class="card approval" tabIndex={0} aria-label={`Approve ${name}?`} onKeyDown={pressed}>
      <div class="head">
        <h2><code>{visible(name)}</code></h2>
        {approval.tenant ? <span><span class="faint">Tenant</span> {visible(approval.tenant)}</span> : null}
        <span class="fill" />
        <span class={left !== null && left < 300 ? "bad" : "faint"}>{left === null ? "" : left > 0 ? `${duration(left)} left` : "expired"}</span>
      </div>
      <div class="question"><Markdown text={approval.question || "May this call be made?"} /></div>
      <p class="faint">
        Asked by <code>{approval.policy}</code> at <Time at={approval.asked_at} />, <a href={link(`runs/${approval.response_id}`)}>the run up to here</a>
      </p>
      {declared ? (
        <p class="declared">
          {visible(declared.description)} {declared.effects.length ? <span class="effects">Declares: {declared.effects.join(", ")}</span> : null}
        </p>
      ) : null}
      <div class="section"><h3>Arguments</h3><Value value={approval.arguments} /></div>
      {asked ? <ElicitationForm asked={asked} content={content} change={setContent} /> : null}
      {signIn ? <p><a class="button main" href={siteAddress(signIn)} target="_blank" rel="noopener">Sign in</a> <span class="faint">The run goes on once you have.</span></p> : null}
      <label class="reason">
        Reason (the model reads it)
        <input ref={field} value={reason} maxLength={4096} onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
      <div class="actions">
        {signIn ? null : <button class="main" disabled={isSending} onClick={() => void send(true)}>{asked ? (asked.mode === "form" ? "Send" : "Done") : "Approve"}</button>}
        <button class="danger" disabled={isSending} onClick={() => void send(false)}>Deny</button>
      </div>
      {error ? <Failure error={error} /> : null}
    </article>
  );
}

async function readDeclaration(approval: Approval): Promise<Declared | null> {
  const page = await get<{ data: any[] }>(`runs/${encodeURIComponent(approval.response_id)}/events`, { limit: 1 });
  const tool = (page.data[0]?.spec?.tools ?? []).find((each: any) => each.name === approval.tool);
  return tool ? { description: tool.description ?? "", effects: tool.effects ?? [] } : null;
}
