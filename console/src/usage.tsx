import { useEffect, useRef } from "preact/hooks";
import { get, post } from "./api";
import { compact, number, visible } from "./format";
import { adjust, place } from "./router";
import { Empty, Grid, Loading, useLoaded, useTitle, Tree } from "./parts";
import type { Json } from "./api";

interface Line {
  group: string;
  runs: number;
  failed: number;
  seconds: number | null;
  input_tokens: number;
  output_tokens: number;
  cost: number | null;
}

const GROUPS = ["day", "model", "agent", "key", "tenant"];

export function Usage() {
  useTitle("Usage");
  const by = place.value.query.get("by") ?? "day";
  const usage = useLoaded(() => get<{ data: Line[]; total: Line }>("usage", { by }), by);
  return (
    <div class="page">
      <div class="bar">
        <h1>Usage</h1>
        <label class="inline">
          By
          <select value={by} onChange={(event) => adjust({ by: event.currentTarget.value })}>{GROUPS.map((name) => <option value={name}>{name}</option>)}</select>
        </label>
        <span class="fill" />
        {usage.value ? <button class="quiet" onClick={() => download(usage.value!.data, by)}>Download CSV</button> : null}
      </div>
      <Loading of={usage}>
        {({ data, total }) => data.length === 0 ? <Empty><p>Nothing has been used yet.</p></Empty> : (
          <>
            <div class="facts">
              <span><span class="faint">Runs</span> {number(total.runs)}</span>
              <span><span class="faint">Failed</span> {number(total.failed)}</span>
              <span><span class="faint">Tokens</span> {compact(total.input_tokens + total.output_tokens)}</span>
              {total.cost === null ? null : <span><span class="faint">Cost</span> {total.cost.toFixed(2)}</span>}
            </div>
            {by === "day" && data.length > 1 ? <Chart lines={data} /> : null}
            <Grid label="Usage" head={[by, "runs", "failed", "input tokens", "output tokens", "seconds (mean)", "cost"]} rows={data.map((line) => [
              visible(line.group || "(none)"), number(line.runs), number(line.failed), number(line.input_tokens), number(line.output_tokens),
              line.seconds === null ? "" : line.seconds.toFixed(2), line.cost === null ? "" : line.cost.toFixed(4),
            ])} />
          </>
        )}
      </Loading>
      <Budgets />
    </div>
  );
}

function download(lines: Line[], by: string): void {
  const names = ["group", "runs", "failed", "seconds", "input_tokens", "output_tokens", "cost"] as const;
  const quote = (value: unknown) => `"${String(value ?? "").replace(/"/g, '""').replace(/^([=+@-])/, "'$1")}"`;
  const text = [names.join(","), ...lines.map((line) => names.map((name) => (name === "group" ? quote(line[name]) : (line[name] ?? ""))).join(","))].join("\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `usage-by-${by}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Tokens by day. The table below has the same figures. */
function Chart({ lines }: { lines: Line[] }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let chart: { destroy: () => void } | null = null;
    let isWanted = true;
    void Promise.all([import("uplot"), import("uplot/dist/uPlot.min.css")]).then(([{ default: UPlot }]) => {
      if (!isWanted || !box.current) return;
      const style = getComputedStyle(document.documentElement);
      const colour = (name: string) => style.getPropertyValue(name).trim();
      const sorted = [...lines].sort((a, b) => a.group.localeCompare(b.group));
      const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 } };
      chart = new UPlot(
        {
          width: box.current.clientWidth, height: 240, legend: { show: false }, axes: [axis, { ...axis, size: 70 }],
          series: [{}, { label: "input", stroke: colour("--turn"), width: 2 }, { label: "output", stroke: colour("--call"), width: 2 }],
        },
        [sorted.map((line) => Date.parse(line.group) / 1000), sorted.map((line) => line.input_tokens), sorted.map((line) => line.output_tokens)],
        box.current,
      );
    });
    return () => {
      isWanted = false;
      chart?.destroy();
    };
  }, [lines]);
  return <figure class="card"><div ref={box} aria-hidden="true" /><figcaption class="faint">Input (blue) and output tokens (green) by day</figcaption></figure>;
}

function Budgets() {
  const budgets = useLoaded(() => get<{ data: any[] }>("budgets"));
  const change = async (id: string, what: string) => {
    await post(`budgets/${encodeURIComponent(id)}/${what}`);
    budgets.reload();
  };
  return (
    <section>
      <h2>Budgets</h2>
      <Loading of={budgets}>
        {({ data }) => data.length === 0 ? <p class="faint">No budget is configured.</p> : (
          <>
            {data.map((budget) => (
              <article class="card">
                <div class="bar">
                  <h3>{visible(String(budget.name ?? budget.id))}</h3><span class="fill" />
                  <button onClick={() => void change(budget.id, "suspend")}>Suspend</button>
                  <button onClick={() => void change(budget.id, "activate")}>Activate</button>
                </div>
                <Tree value={budget as Json} />
              </article>
            ))}
          </>
        )}
      </Loading>
    </section>
  );
}
