// The runs around a run: the workflow or the agent that has started it, and those that it has started itself.
import type { RunDetails, RunLine, ShownRun, ShownStep } from "./api_types";
import { useEffect, useState } from "preact/hooks";
import { get } from "./api";
import { Failure, Loading, Status, useLoaded } from "./parts";
import { link } from "./router";
import { inLine } from "./run_model";
import { changes, missed } from "./runs_data";

interface Around {
  /** From the run that nobody has delegated down to the one that is shown. */
  path: RunDetails[];
  workflow: ShownRun | null;
}

const read = (id: string) => get<RunDetails>(`runs/${encodeURIComponent(id)}`);

async function readAround(spec: any): Promise<Around> {
  const path = [await read(spec.id)];
  for (let above = path[0]!.within; above !== null; above = path[0]!.within) {
    const found = await read(above).catch(() => null);
    if (found === null) break; // it was deleted: the tree begins below it
    path.unshift(found);
  }
  const root = path[0]!.id;
  const first = root === spec.id ? [{ spec }] : (await get<{ data: { spec?: any }[] }>(`runs/${encodeURIComponent(root)}/events`, { limit: 1 })).data;
  const { workflow, workflow_run: run } = first[0]?.spec?.metadata ?? {};
  const address = `workflows/${encodeURIComponent(workflow ?? "")}/runs/${encodeURIComponent(run ?? "")}`;
  // A key may see runs and no workflows.
  return { path, workflow: workflow && run ? await get<Around["workflow"]>(address).catch(() => null) : null };
}

interface TreeProps {
  spec: any;
  isOver: boolean;
  delegated: number;
  returned: number;
}

/** Nothing, where a run is alone. */
export function RunTree({ spec, isOver, delegated, returned }: TreeProps) {
  const id: string = spec.id;
  const mayHaveOthers = isOver || delegated > 0 || Boolean(spec.within || spec.metadata?.workflow_run);
  const around = useLoaded(async () => (mayHaveOthers ? readAround(spec) : null), `${mayHaveOthers} ${isOver} ${delegated} ${returned}`);
  const told = changes.value;
  useEffect(() => {
    const shown = around.value?.path.flatMap((run) => [run, ...run.children]) ?? [];
    // What was delegated a moment ago may not have been stored when the tree was read.
    const isIncomplete = delegated > returned && (around.value?.path.at(-1)?.children.length ?? 0) < delegated;
    if (isIncomplete || shown.some((run) => run.id === told?.id)) around.reload();
  }, [told, missed.value]);
  if (around.error) return <Failure error={around.error} retry={around.reload} />;
  if (around.value === null) return null;
  const { path, workflow } = around.value;
  const here = path.at(-1)!;
  if (path.length === 1 && !here.children.length && !here.continued_by.length && !workflow) return null;
  const tree = <Node line={path[0]!} path={path} here={id} />;
  return (
    <nav class="tree" aria-label="Runs around this one">
      <ul>
        {workflow ? (
          <li>
            <Status status={workflow.status} /> <a href={link(`workflows/${encodeURIComponent(workflow.workflow)}/${workflow.id}`)}>Workflow {workflow.workflow}</a>
            <ul>{workflow.steps.map((step) => <StepNode key={step.id} step={step} path={path} here={id} />)}</ul>
          </li>
        ) : tree}
      </ul>
      {here.continued_by.map((next) => <p key={next.id}>Goes on in <a href={link(`runs/${next.id}`)}>{inLine(next.prompt) || next.id}</a></p>)}
    </nav>
  );
}

function StepNode({ step, path, here }: { step: ShownStep; path: RunDetails[]; here: string }) {
  return (
    <li>
      <Status status={step.status} /> Step {step.id}
      {step.run_id === path[0]!.id ? <ul><Node line={path[0]!} path={path} here={here} /></ul> : step.run_id ? <> <a href={link(`runs/${step.run_id}`)}>its run</a></> : null}
    </li>
  );
}

/** A run and what it has delegated: read at once on the way to the run that is shown, else when somebody wants to see it. */
function Node({ line, path, here }: { line: RunLine; path: RunDetails[]; here: string }) {
  const known = path.find((each) => each.id === line.id);
  const [isOpen, setOpen] = useState(known !== undefined);
  const name = line.agent || inLine(line.prompt) || line.id;
  const isHere = line.id === here;
  return (
    <li>
      <Status status={line.status} waiting={line.waiting} />{" "}
      <a href={link(`runs/${line.id}`)} aria-current={isHere ? "page" : undefined}>{name}</a>{" "}
      <span class="faint">{line.agent ? inLine(line.prompt).slice(0, 120) : null}</span>
      {known ? null : <button class="quiet" aria-expanded={isOpen} aria-label={`Runs of ${name}`} onClick={() => setOpen(!isOpen)}>{isOpen ? "−" : "+"}</button>}
      {known ? <Nodes lines={known.children} path={path} here={here} /> : isOpen ? <Further id={line.id} path={path} here={here} /> : null}
    </li>
  );
}

const Nodes = ({ lines, path, here }: { lines: RunLine[]; path: RunDetails[]; here: string }) =>
  lines.length ? <ul>{lines.map((each) => <Node key={each.id} line={each} path={path} here={here} />)}</ul> : null;

function Further({ id, path, here }: { id: string; path: RunDetails[]; here: string }) {
  const details = useLoaded(() => read(id), id);
  return (
    <Loading of={details}>
      {(value) => value.children.length ? <Nodes lines={value.children} path={path} here={here} /> : <p class="faint">It has started no others.</p>}
    </Loading>
  );
}
