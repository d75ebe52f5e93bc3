// A workflow drawn as a graph: a row for each group of steps that can begin together, coloured by what became of them.
import type { ShownStep } from "./api_types";
import { link } from "./router";

interface DefinedStep {
  id: string;
  action: string;
}

interface Props {
  steps: DefinedStep[];
  /** What each step waits for. */
  after: Record<string, string[]>;
  done: ShownStep[];
}

interface Place {
  x: number;
  y: number;
}

const WIDTH = 172;
const HEIGHT = 46;
const GAP = 24;
const ROW = HEIGHT + 40;
const MARGIN = 4;
/** How far a wide graph is made smaller before it is scrolled. */
const LEAST = 0.6;

/** The steps in rows, each below all that it waits for. The server refuses workflows whose steps wait for each other. */
function makeRows(steps: DefinedStep[], after: Record<string, string[]>): DefinedStep[][] {
  const level = new Map<string, number>();
  const rows: DefinedStep[][] = [];
  let left = steps;
  while (left.length) {
    const ready = left.filter((step) => (after[step.id] ?? []).every((id) => level.has(id)));
    if (!ready.length) return [...rows, left];
    for (const step of ready) level.set(step.id, rows.length);
    rows.push(ready);
    left = left.filter((step) => !level.has(step.id));
  }
  return rows;
}

const short = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function statusOf(done: ShownStep | undefined): string {
  if (!done) return "not yet";
  return done.approvals.length ? "waiting" : done.status;
}

export function WorkflowGraph({ steps, after, done }: Props) {
  const rows = makeRows(steps, after);
  const width = Math.max(...rows.map((row) => row.length * (WIDTH + GAP) - GAP), WIDTH) + 2 * MARGIN;
  const height = rows.length * ROW - (ROW - HEIGHT) + 2 * MARGIN;
  const places = new Map<string, Place>();
  rows.forEach((row, index) => {
    const first = (width - (row.length * (WIDTH + GAP) - GAP)) / 2;
    row.forEach((step, column) => places.set(step.id, { x: first + column * (WIDTH + GAP), y: MARGIN + index * ROW }));
  });
  const edges = steps.flatMap((step) => (after[step.id] ?? []).map((from) => ({ from: places.get(from), to: places.get(step.id)! })));
  return (
    <div class="graph" tabIndex={0} role="region" aria-label="Graph of the steps">
      <svg viewBox={`0 0 ${width} ${height}`} style={{ width: `${width}px`, maxWidth: "100%", minWidth: `${Math.round(width * LEAST)}px` }}>
        {edges.map(({ from, to }) => from ? <path aria-hidden="true" d={draw(from, to)} /> : null)}
        {steps.map((step) => {
          const known = done.find((each) => each.id === step.id);
          const node = <Node step={step} at={places.get(step.id)!} status={statusOf(known)} />;
          return known?.run_id ? <a href={link(`runs/${known.run_id}`)}>{node}</a> : node;
        })}
      </svg>
    </div>
  );
}

function draw(from: Place, to: Place): string {
  const [x, y, endX, endY] = [from.x + WIDTH / 2, from.y + HEIGHT, to.x + WIDTH / 2, to.y];
  const middle = (y + endY) / 2;
  return `M ${x} ${y} C ${x} ${middle}, ${endX} ${middle}, ${endX} ${endY}`;
}

function Node({ step, at, status }: { step: DefinedStep; at: Place; status: string }) {
  return (
    <g class={`node ${status.replace(" ", "-")}`}>
      <title>{`${step.id}: ${status}`}</title>
      <rect x={at.x} y={at.y} width={WIDTH} height={HEIGHT} rx={8} />
      <text x={at.x + 10} y={at.y + 19}>{short(step.id, 22)}</text>
      <text class="small" x={at.x + 10} y={at.y + 36}>{short(step.action, 16)}, {status}</text>
    </g>
  );
}
