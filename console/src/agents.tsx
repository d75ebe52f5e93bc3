import type { ShownRun, ShownStep } from "./api_types";
import { useEffect, useState } from "preact/hooks";
import { ApiError, get, type Json, post } from "./api";
import { duration, visible } from "./format";
import { type Given, type Input, Inputs, listGiven, startInputs } from "./inputs";
import { go, link } from "./router";
import { WorkflowGraph } from "./workflow_graph";
import { Empty, Failure, Loading, Status, Tree, useLoaded, useTitle, Value } from "./parts";

interface Definition {
  name: string;
  version: string;
  description: string;
  inputs: Record<string, Input>;
  [field: string]: any;
}

interface List {
  data: Definition[];
  problems?: string[];
}

/** A server without a folder of agents has none, and that is no failure. */
function hasNone(error: unknown): List {
  if (error instanceof ApiError && error.status === 503) return { data: [] };
  throw error;
}

export function Agents() {
  useTitle("Agents");
  const agents = useLoaded(() => get<List>("agents").catch(hasNone));
  const workflows = useLoaded(() => get<List>("workflows"));
  const invoke = async (agent: Definition, inputs: Record<string, Json>) => {
    const run = await post<{ id: string }>("responses", { model: `agent:${agent.name}`, input: JSON.stringify(inputs), background: true });
    go(`runs/${run.id}`);
  };
  const start = async (workflow: Definition, inputs: Record<string, Json>) => {
    const run = await post<{ id: string }>(`workflows/${encodeURIComponent(workflow.name)}/runs`, { inputs, background: true });
    go(`workflows/${encodeURIComponent(workflow.name)}/${run.id}`);
  };
  return (
    <div class="page">
      <h1>Agents and workflows</h1>
      <h2>Agents</h2>
      <Loading of={agents}>{(list) => <Cards list={list} none="No agent is defined; name a folder in the setting agents." act="Start" started={invoke} />}</Loading>
      <h2>Workflows</h2>
      <Loading of={workflows}>{(list) => <Cards list={list} none="No workflow is defined; name a folder in the setting workflows." act="Run" started={start} />}</Loading>
    </div>
  );
}

type Started = (definition: Definition, inputs: Record<string, Json>) => Promise<void>;

function Cards({ list, none, act, started }: { list: List; none: string; act: string; started: Started }) {
  return (
    <>
      {list.problems?.length ? <div class="failure" role="alert">{list.problems.map((each) => <p>{visible(each)}</p>)}</div> : null}
      {list.data.length === 0 ? <Empty><p>{none}</p></Empty> : list.data.map((each) => <Card key={each.name} definition={each} act={act} started={started} />)}
    </>
  );
}

function Card({ definition, act, started }: { definition: Definition; act: string; started: Started }) {
  const inputs = definition.inputs ?? {};
  const [given, setGiven] = useState<Given>(() => startInputs(inputs));
  const [error, setError] = useState<unknown>(null);
  const send = async (event: Event) => {
    event.preventDefault();
    try {
      await started(definition, listGiven(given));
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <article class="card">
      <h3 class="name"><code>{visible(definition.name)}</code> {definition.version}</h3>
      <p>{visible(definition.description)}</p>
      <form class="ask" onSubmit={send}>
        <Inputs inputs={inputs} given={given} change={setGiven} />
        <button class="main">{act}</button>
      </form>
      {error ? <Failure error={error} /> : null}
      {definition.steps ? <details><summary>Steps</summary><WorkflowGraph steps={definition.steps} after={definition.after} done={[]} /></details> : null}
      <details><summary>Definition</summary><Tree value={definition as unknown as Json} /></details>
    </article>
  );
}

const hasOutput = (step: ShownStep): boolean => (step.output !== null && step.output !== undefined) || Object.keys(step.outputs ?? {}).length > 0;

const DONE = ["completed", "success", "succeeded"];
const OVER = [...DONE, "failed", "cancelled", "partial"];

export function WorkflowScreen({ name, id }: { name: string; id: string }) {
  useTitle(name);
  const path = `workflows/${encodeURIComponent(name)}`;
  const definition = useLoaded(() => get<Definition>(path), name);
  const run = useLoaded(() => get<ShownRun>(`${path}/runs/${encodeURIComponent(id)}`), id);
  const isOver = OVER.includes(run.value?.status ?? "");
  const isDone = DONE.includes(run.value?.status ?? "");
  useEffect(() => {
    if (isOver) return;
    const timer = setInterval(run.reload, 1000);
    return () => clearInterval(timer);
  }, [isOver]);
  const [failure, setFailure] = useState<unknown>(null);
  const act = (what: string) => post(`${path}/runs/${encodeURIComponent(id)}/${what}`).then(() => { setFailure(null); run.reload(); }, setFailure);
  return (
    <div class="page">
      <p class="crumbs"><a href={link("agents")}>Workflows</a> / <code>{id}</code></p>
      <h1>{visible(name)}</h1>
      <Loading of={run}>
        {(value) => (
          <>
            <div class="facts"><Status status={value.status} />{value.error ? <span class="bad">{visible(value.error)}</span> : null}</div>
            <div class="actions">
              {isOver ? (isDone ? null : <button onClick={() => void act("resume")}>Resume</button>) : <button class="danger" onClick={() => void act("cancel")}>Cancel</button>}
            </div>
            {failure ? <Failure error={failure} /> : null}
            {definition.value ? <WorkflowGraph steps={definition.value.steps} after={definition.value.after} done={value.steps} /> : null}
            <ol class="group steps">
              {(definition.value?.steps ?? []).map((step: any) => {
                const done = value.steps.find((each) => each.id === step.id);
                return (
                  <li class={`entry ${done?.status === "failed" ? "bad" : done ? "call" : ""}`}>
                    <div class="head"><span class="who">{visible(step.id)}</span><span>{visible(String(step.action ?? ""))}</span>{done && done.attempt > 1 ? <span>attempt {done.attempt}</span> : null}<span class="fill" />{done?.started_at && done.ended_at ? <span>{duration(done.ended_at - done.started_at)}</span> : null}<span>{done?.status ?? "not yet"}</span></div>
                    {step.depends_on?.length ? <p class="faint">after {step.depends_on.join(", ")}</p> : null}
                    {done?.error ? <p class="bad">{visible(done.error)}</p> : null}
                    {done && hasOutput(done) ? <div class="section"><h4>Output</h4><Value value={done.output ?? done.outputs} /></div> : null}
                    {done?.run_id ? <p><a href={link(`runs/${done.run_id}`)}>Its run</a></p> : null}
                    {done?.approvals.length ? <p><a href={link("approvals")}>Waits for a person</a></p> : null}
                  </li>
                );
              })}
            </ol>
            {isOver ? <section class="card"><h2>Outputs</h2>{Object.keys(value.outputs).length ? <Tree value={value.outputs} /> : <p class="faint">The workflow names none; its steps have theirs.</p>}</section> : null}
          </>
        )}
      </Loading>
    </div>
  );
}
