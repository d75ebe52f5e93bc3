import type { DefinitionSource, ShownRun, ShownStep } from "./api_types";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, type Json, type JsonObject, post } from "./api";
import { duration, exactTime } from "./format";
import { type Given, type Input, Inputs, listGiven, startInputs } from "./inputs";
import { go, link } from "./router";
import { WorkflowGraph } from "./workflow_graph";
import { Empty, Failure, Grid, Loading, More, now, Said, Status, Text, Time, Tree, useKeys, useList, useLoaded, useTitle, Value } from "./parts";

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

const MANY = 4;

const fits = (definition: Definition, wanted: string): boolean => `${definition.name} ${definition.description}`.toLowerCase().includes(wanted);

export function Agents() {
  useTitle("Agents");
  const [text, setText] = useState("");
  const box = useRef<HTMLInputElement>(null);
  useKeys({ "/": () => box.current?.focus() });
  const wanted = text.trim().toLowerCase();
  const agents = useLoaded(() => get<List>("agents").catch(hasNone));
  const workflows = useLoaded(() => get<List>("workflows"));
  const invoke = async (agent: Definition, inputs: Record<string, Json>) => {
    const variables = Object.fromEntries(Object.entries(inputs).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]));
    const run = await post<{ id: string }>("responses", { prompt: { id: agent.name, variables }, background: true });
    go(`runs/${run.id}`);
  };
  const ask = async (agent: Definition, message: string) => {
    const run = await post<{ id: string }>("responses", { model: `agent:${agent.name}`, input: message, background: true });
    go(`runs/${run.id}`);
  };
  const start = async (workflow: Definition, inputs: Record<string, Json>) => {
    const run = await post<{ id: string }>(`workflows/${encodeURIComponent(workflow.name)}/runs`, { inputs, background: true });
    go(`workflows/${encodeURIComponent(workflow.name)}/${run.id}`);
  };
  return (
    <div class="page">
      <h1>Agents and workflows</h1>
      {(agents.value?.data.length ?? 0) + (workflows.value?.data.length ?? 0) > MANY ? (
        <div class="filters"><label class="grow">Find an agent or a workflow<input ref={box} type="search" value={text} placeholder="part of its name or description" onInput={(event) => setText(event.currentTarget.value)} /></label></div>
      ) : null}
      <h2>Agents</h2>
      <Loading of={agents}>{(list) => <Cards list={list} none="No agent is defined; name a folder in the setting agents." act="Start" wanted={wanted} started={invoke} asked={ask} />}</Loading>
      <h2>Workflows</h2>
      <Loading of={workflows}>{(list) => <Cards list={list} none="No workflow is defined; name a folder in the setting workflows." act="Run" wanted={wanted} started={start} />}</Loading>
    </div>
  );
}

type Started = (definition: Definition, inputs: Record<string, Json>) => Promise<void>;

interface CardsProps {
  list: List;
  none: string;
  act: string;
  /** Of many, those with this in their names or descriptions are shown. */
  wanted: string;
  started: Started;
  /** Where what has no inputs takes a message. */
  asked?: (definition: Definition, message: string) => Promise<void>;
}

function Cards({ list, none, act, wanted, started, asked }: CardsProps) {
  const shown = list.data.filter((each) => fits(each, wanted));
  return (
    <>
      {list.problems?.length ? <div class="failure" role="alert">{list.problems.map((each) => <p><Said text={each} /></p>)}</div> : null}
      {list.data.length === 0 ? <Empty><p>{none}</p></Empty> : shown.length === 0 ? <p class="faint">None has this.</p> : shown.map((each) => <Card key={each.name} definition={each} act={act} started={started} asked={asked} />)}
    </>
  );
}

function Card({ definition, act, started, asked }: Omit<CardsProps, "list" | "none" | "wanted"> & { definition: Definition }) {
  const inputs = definition.inputs ?? {};
  const takesMessage = asked !== undefined && Object.keys(inputs).length === 0;
  const [message, setMessage] = useState("");
  const [given, setGiven] = useState<Given>(() => startInputs(inputs));
  const [error, setError] = useState<unknown>(null);
  const send = async (event: Event) => {
    event.preventDefault();
    try {
      await (takesMessage ? asked(definition, message.trim()) : started(definition, listGiven(given)));
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <article class="card">
      <h3 class="name"><code>{definition.name}</code> {definition.version}</h3>
      <p>{definition.description}</p>
      <form class="ask" onSubmit={send}>
        {takesMessage ? <label class="field"><strong>Message</strong><textarea rows={2} required value={message} onInput={(event) => setMessage(event.currentTarget.value)} /></label> : <Inputs inputs={inputs} given={given} change={setGiven} />}
        <div class="actions">
          <button class="main">{act}</button>
          {asked ? <a class="button" href={link("chat", { model: `agent:${definition.name}` })}>Chat</a> : null}
        </div>
      </form>
      {error ? <Failure error={error} /> : null}
      {definition.steps ? <WorkflowRuns name={definition.name} /> : null}
      {definition.steps ? <details><summary>Steps</summary><WorkflowGraph steps={definition.steps} after={definition.after} done={[]} /></details> : null}
      <Source path={`${definition.steps ? "workflows" : "agents"}/${encodeURIComponent(definition.name)}/source`} />
      <details><summary>Definition</summary><Tree value={definition as unknown as Json} /></details>
    </article>
  );
}

/** The file that somebody has written; what is read from it, with every default, is the definition. */
function Source({ path }: { path: string }) {
  const [isOpen, setOpen] = useState(false);
  const source = useLoaded(async () => (isOpen ? get<DefinitionSource>(path) : null), `${path} ${isOpen}`);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Source</summary>
      {isOpen ? <Loading of={source}>{(read) => read && <><p class="faint"><code>{read.file}</code></p><Text text={read.text} /></>}</Loading> : null}
    </details>
  );
}

/** The runs of a workflow, newest first. */
function WorkflowRuns({ name }: { name: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Runs</summary>
      {isOpen ? <WorkflowRunList name={name} /> : null}
    </details>
  );
}

function WorkflowRunList({ name }: { name: string }) {
  const path = `workflows/${encodeURIComponent(name)}`;
  const runs = useList<ShownRun>(`${path}/runs`, { limit: 10 });
  return (
    <Loading of={runs}>
      {(list) => list.length === 0 ? <p class="faint">It has not run yet.</p> : (
        <>
          <Grid label={`Runs of ${name}`} head={["run", "status", "began", "took"]} rows={list.map((run) => [
            <a href={link(`${path}/${run.id}`)}>{run.id}</a>, <Status status={run.status} />, run.created_at ? <Time at={run.created_at} /> : "",
            run.ended_at ? duration(run.ended_at - run.created_at) : "",
          ])} />
          <More of={runs} />
        </>
      )}
    </Loading>
  );
}

const hasOutput = (step: ShownStep): boolean => (step.output !== null && step.output !== undefined) || Object.keys(step.outputs ?? {}).length > 0;

const OVER = ["completed", "success", "succeeded", "failed", "cancelled", "partial"];

export function WorkflowScreen({ name, id }: { name: string; id: string }) {
  useTitle(name);
  const path = `workflows/${encodeURIComponent(name)}`;
  const definition = useLoaded(() => get<Definition>(path), name);
  const run = useLoaded(() => get<ShownRun>(`${path}/runs/${encodeURIComponent(id)}`), id);
  const isOver = OVER.includes(run.value?.status ?? "");
  useEffect(() => {
    if (isOver) return;
    const timer = setInterval(run.reload, 1000);
    return () => clearInterval(timer);
  }, [isOver]);
  const [failure, setFailure] = useState<unknown>(null);
  const again = async (inputs: JsonObject) => {
    const given = Object.fromEntries(Object.entries(inputs).filter(([, value]) => value !== null));
    const begun = await post<{ id: string }>(`${path}/runs`, { inputs: given, background: true });
    go(`${path}/${begun.id}`);
  };
  const act = (what: string) => post(`${path}/runs/${encodeURIComponent(id)}/${what}`).then(() => { setFailure(null); run.reload(); }, setFailure);
  return (
    <div class="page">
      <p class="crumbs"><a href={link("agents")}>Workflows</a> / <code>{id}</code></p>
      <h1>{name}</h1>
      <Loading of={run}>
        {(value) => (
          <>
            <div class="facts">
              <Status status={value.status} />
              <span><span class="faint">Began</span> <Time at={value.created_at} told={exactTime} /></span>
              <span><span class="faint">Took</span> {duration((value.ended_at ?? now.value) - value.created_at)}</span>
              <span><span class="faint">Steps</span> {value.steps.length} of {definition.value?.steps?.length ?? "…"}</span>
            </div>
            {value.error ? <p class="bad"><Said text={value.error} /></p> : null}
            <div class="actions">
              {isOver ? <button onClick={() => void again(value.inputs).catch(setFailure)}>Run again</button> : (
                <>
                  <button class="danger" onClick={() => void act("cancel")}>Cancel</button>
                  <button class="quiet" title="Has this server go on with it, if the process that did is gone" onClick={() => void act("resume")}>Resume</button>
                </>
              )}
            </div>
            {failure ? <Failure error={failure} /> : null}
            {definition.value ? <WorkflowGraph steps={definition.value.steps} after={definition.value.after} done={value.steps} /> : null}
            <ol class="group steps">
              {(definition.value?.steps ?? []).map((step: any) => {
                const done = value.steps.find((each) => each.id === step.id);
                return (
                  <li class={`entry ${done?.status === "failed" ? "bad" : done?.status === "success" ? "call" : ""}`}>
                    <div class="head"><span class="who">{step.id}</span><span>{String(step.action ?? "")}</span>{done && done.attempt > 1 ? <span>attempt {done.attempt}</span> : null}<span class="fill" />{done?.started_at && done.ended_at ? <span>{duration(done.ended_at - done.started_at)}</span> : null}<span>{done?.status ?? "not yet"}</span></div>
                    {step.depends_on?.length ? <p class="faint">after {step.depends_on.join(", ")}</p> : null}
                    {done?.error ? <p class={done.status === "skipped" ? "faint" : "bad"}><Said text={done.error} /></p> : null}
                    {done && hasOutput(done) ? <div class="section"><p class="part">Output</p><Value value={done.output ?? done.outputs} /></div> : null}
                    {done?.run_id ? <p><a href={link(`runs/${done.run_id}`)}>Its run</a></p> : null}
                    {done?.approvals.length ? <p><a href={link("approvals")}>Waits for a person</a></p> : null}
                  </li>
                );
              })}
            </ol>
            {Object.keys(value.inputs).length ? <details class="card"><summary>Inputs</summary><Tree value={value.inputs} /></details> : null}
            {isOver ? <section class="card"><h2>Outputs</h2>{Object.keys(value.outputs).length ? <Tree value={value.outputs} /> : <p class="faint">The workflow names none; its steps have theirs.</p>}</section> : null}
          </>
        )}
      </Loading>
    </div>
  );
}
