// What starts work by the clock or from outside, and who is told of it.
import { useEffect, useState } from "preact/hooks";
import { get, post, remove } from "./api";
import type { ShownDelivery, ShownEndpoint, ShownSchedule, ShownWebhook } from "./api_types";
import { wallTime } from "./format";
import { link } from "./router";
import { Code, Confirm, Empty, Failure, Grid, Loading, More, Time, useList, useLoaded, useTitle } from "./parts";

const SECONDS_BETWEEN_LOOKS = 3;

export function Triggers() {
  useTitle("Triggers");
  const schedules = useList<ShownSchedule>("schedules");
  const webhooks = useList<ShownWebhook>("webhooks");
  const endpoints = useList<ShownEndpoint>("webhook_endpoints");
  // What is due starts by itself, and what is asked for a moment later.
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) schedules.reload(); }, SECONDS_BETWEEN_LOOKS * 1000);
    return () => clearInterval(timer);
  }, []);
  return (
    <div class="page">
      <h1>Triggers</h1>
      <h2>Schedules</h2>
      <Loading of={schedules}>
        {(data) => data.length === 0 ? <Empty><p>Nothing starts by the clock.</p><p class="faint"><code>mainspring schedules --help</code> tells how to make a schedule.</p></Empty>
          : data.map((each) => <Schedule key={each.id} schedule={each} changed={schedules.reload} />)}
      </Loading>
      <More of={schedules} />
      <h2>Webhooks</h2>
      <p class="faint">What others send here, signed, starts an agent or a workflow.</p>
      <Loading of={webhooks}>
        {(data) => data.length === 0 ? <p class="faint">There is none.</p> : data.map((each) => <Webhook key={each.id} webhook={each} changed={webhooks.reload} />)}
      </Loading>
      <More of={webhooks} />
      <h2>Who is told</h2>
      <p class="faint">Addresses that are sent the ends of runs and waiting approvals.</p>
      <Loading of={endpoints}>
        {(data) => data.length === 0 ? <p class="faint">Nobody is.</p> : data.map((each) => <Endpoint key={each.id} endpoint={each} changed={endpoints.reload} />)}
      </Loading>
      <More of={endpoints} />
    </div>
  );
}

/** Does what a button says, and tells when it cannot be done. */
function useAct(changed: () => void): [act: (what: () => Promise<unknown>) => void, error: unknown] {
  const [error, setError] = useState<unknown>(null);
  const act = (what: () => Promise<unknown>) => void what().then(() => { setError(null); changed(); }, setError);
  return [act, error];
}

const targetOf = ({ agent, workflow }: { agent?: string; workflow?: string }): string => (agent ? `agent ${agent}` : `workflow ${workflow}`);

function Schedule({ schedule, changed }: { schedule: ShownSchedule; changed: () => void }) {
  const [act, error] = useAct(changed);
  const path = `schedules/${encodeURIComponent(schedule.name)}`;
  const { definition, recent } = schedule;
  return (
    <article class="card" aria-label={`Schedule ${schedule.name}`}>
      <div class="bar">
        <h3 class="name"><code>{schedule.name}</code></h3>
        <span class={schedule.state === "active" ? "faint" : "bad"}>{schedule.state}</span>
        <span class="fill" />
        <span class="actions"><button onClick={() => act(() => post(`${path}/run`))}>Run now</button>
        {schedule.state === "active" ? <button onClick={() => act(() => post(`${path}/pause`))}>Pause</button> : <button onClick={() => act(() => post(`${path}/resume`))}>Resume</button>}</span>
      </div>
      {definition.description ? <p>{definition.description}</p> : null}
      <div class="facts">
        <span><span class="faint">Starts</span> {targetOf(definition)}</span>
        <span><span class="faint">When</span> <code>{definition.cron || `every ${definition.every}`}</code> {definition.timezone ?? "UTC"}</span>
        {schedule.next ? <span><span class="faint">Next</span> <time dateTime={schedule.next} title={schedule.next}>{wallTime(schedule.next)}</time></span> : null}
        {schedule.last ? <span><span class="faint">Last</span> <time dateTime={schedule.last} title={schedule.last}>{wallTime(schedule.last)}</time></span> : null}
      </div>
      {schedule.stopped ? <p class="bad">{schedule.stopped}</p> : null}
      {recent.length ? (
        <details>
          <summary>Its last {recent.length} due times</summary>
          <Grid label={`Due times of ${schedule.name}`} head={["due", "what became of it", "run"]} rows={[...recent].reverse().map((each) => [
            <Time at={each.due} />, `${each.outcome}${each.reason ? `: ${each.reason}` : ""}`, each.run_id ? <RunLink id={each.run_id} workflow={definition.workflow ?? ""} /> : "",
          ])} />
        </details>
      ) : null}
      {error ? <Failure error={error} /> : null}
    </article>
  );
}

function RunLink({ id, workflow }: { id: string; workflow: string }) {
  return <a href={link(workflow ? `workflows/${encodeURIComponent(workflow)}/${id}` : `runs/${id}`)}>{id}</a>;
}

function Webhook({ webhook, changed }: { webhook: ShownWebhook; changed: () => void }) {
  const [secret, setSecret] = useState<string | null>(null);
  const [act, error] = useAct(changed);
  const path = `webhooks/${encodeURIComponent(webhook.id)}`;
  const rotate = async () => setSecret((await post<ShownWebhook>(`${path}/rotate`)).secret ?? null);
  return (
    <article class="card" aria-label={`Webhook ${webhook.id}`}>
      <div class="bar">
        <h3 class="name">{webhook.definition.name} <code>{webhook.path}</code></h3><span class="fill" />
        <button onClick={() => act(rotate)}>New secret</button>
        <Confirm label="Remove" kind="" act={() => act(() => remove(path))} />
      </div>
      <p><span class="faint">Starts</span> {targetOf(webhook.definition)}, <span class="faint">made</span> <Time at={webhook.created_at} /></p>
      <Secret secret={secret} />
      {error ? <Failure error={error} /> : null}
    </article>
  );
}

function Secret({ secret }: { secret: string | null }) {
  return secret ? <div role="status"><p>Keep it now: it is not shown again. The one before is good for a day more.</p><Code text={secret} label="Secret" /></div> : null;
}

function Endpoint({ endpoint, changed }: { endpoint: ShownEndpoint; changed: () => void }) {
  const [secret, setSecret] = useState<string | null>(null);
  const path = `webhook_endpoints/${encodeURIComponent(endpoint.id)}`;
  const dead = useLoaded(() => get<{ data: ShownDelivery[] }>(`${path}/deliveries`, { state: "dead", limit: 50 }), endpoint.id);
  const [act, error] = useAct(() => { dead.reload(); changed(); });
  const rotate = async () => setSecret((await post<ShownEndpoint>(`${path}/rotate`)).secret ?? null);
  return (
    <article class="card" aria-label={`Endpoint ${endpoint.id}`}>
      <div class="bar">
        <h3 class="name"><code>{endpoint.url}</code></h3>
        <span class={endpoint.state === "active" ? "faint" : "bad"}>{endpoint.state}</span><span class="fill" />
        <button onClick={() => act(rotate)}>New secret</button>
        <Confirm label="Remove" kind="" act={() => act(() => remove(path))} />
      </div>
      <p>{endpoint.events.map((each) => <><code>{each}</code> </>)}</p>
      {endpoint.stopped ? <p class="bad">{endpoint.stopped}</p> : null}
      <Secret secret={secret} />
      {dead.error ? <Failure error={dead.error} /> : null}
      {dead.value?.data.length ? (
        <details open>
          <summary>{dead.value.data.length} could not be delivered</summary>
          <Grid label={`Not delivered to ${endpoint.url}`} head={["event", "given up", "attempts", "why", ""]} rows={dead.value.data.map((each) => [
            <code>{each.type}</code>, <Time at={each.at} />, each.attempts, each.error,
            <button onClick={() => act(() => post(`${path}/deliveries/${encodeURIComponent(each.id)}/redeliver`))}>Deliver again</button>,
          ])} />
        </details>
      ) : null}
      {error ? <Failure error={error} /> : null}
    </article>
  );
}
