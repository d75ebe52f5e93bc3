import type { ShownKey, Statement, StatementLine, UsageLine, UsageReport } from "./api_types";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, getAll, post } from "./api";
import { compact, money, moneyColumn, number, tenantName } from "./format";
import { adjust, link, place } from "./router";
import { hasTenants, isOperator, mayUse } from "./session";
import { Empty, Failure, Grid, Loading, useLoaded, useTitle } from "./parts";

const GROUPS = ["day", "model", "agent", "key", "tenant"];
const PERIODS: [days: string, name: string][] = [["7", "last 7 days"], ["30", "last 30 days"], ["90", "last 90 days"], ["all", "all time"]];
const DAY = 86_400;

/** The midnight with which so many days begin, today included: days are those of UTC, as in the sums. */
const beginOf = (days: string): number | undefined => (days === "all" ? undefined : (Math.floor(Date.now() / 1000 / DAY) + 1 - Number(days)) * DAY);

export function Usage() {
  useTitle("Usage");
  const by = place.value.query.get("by") ?? "day";
  const asked = place.value.query.get("days");
  const days = PERIODS.some(([each]) => each === asked) ? asked! : "30";
  const tenant = place.value.query.get("tenant") ?? "";
  const usage = useLoaded(() => get<UsageReport>("usage", { by, from: beginOf(days), tenant }), `${by} ${days} ${tenant}`);
  const tenants = useLoaded(async () => (hasTenants() ? get<UsageReport>("usage", { by: "tenant" }) : null), `${hasTenants()}`);
  // Keys are summed by their ids; people know them by their names.
  const keys = useLoaded(async () => (by === "key" && mayUse("admin") ? getAll<ShownKey>("keys", { tenant }) : []), `${by} ${tenant}`);
  const nameOf = ({ group }: UsageLine): string => (keys.value ?? []).find((key) => key.name && `key:${key.id}` === group)?.name ?? (tenantName(group) || "(none)");
  const cost = moneyColumn((usage.value?.data ?? []).map((line) => line.cost));
  const names = [...new Set([...(tenants.value?.data ?? []).map((line) => line.group), tenant])].filter(Boolean);
  return (
    <div class="page">
      <div class="bar">
        <h1>Usage</h1>
        <label class="inline">
          By
          <select value={by} onChange={(event) => adjust({ by: event.currentTarget.value })}>{GROUPS.map((name) => <option value={name}>{name}</option>)}</select>
        </label>
        <label class="inline">
          Over
          <select value={days} onChange={(event) => adjust({ days: event.currentTarget.value })}>{PERIODS.map(([each, name]) => <option value={each}>{name}</option>)}</select>
        </label>
        {names.length ? (
          <label class="inline">
            Tenant
            <select value={tenant} onChange={(event) => adjust({ tenant: event.currentTarget.value })}>
              <option value="">any</option>
              {names.map((name) => <option value={name}>{tenantName(name)}</option>)}
            </select>
          </label>
        ) : null}
        <span class="fill" />
        {usage.value ? <button class="quiet" onClick={() => download(usage.value!.data, by)}>Download CSV</button> : null}
      </div>
      <Loading of={usage}>
        {({ data, total }) => data.length === 0 ? <Empty><p>{days === "all" ? "Nothing has been used yet." : "Nothing was used in this time."}</p></Empty> : (
          <>
            <div class="facts">
              <span><span class="faint">Runs</span> {number(total.runs)}</span>
              <span><span class="faint">Failed</span> {number(total.failed)}</span>
              <span><span class="faint">Tokens</span> {compact(total.input_tokens + total.output_tokens)}</span>
              {total.cost === null ? null : <span><span class="faint">Cost</span> {money(total.cost)}</span>}
            </div>
            <Charts lines={data} by={by} nameOf={nameOf} />
            <Grid label="Usage" figures={1} head={[by, "runs", "failed", "input tokens", "output tokens", "seconds (mean)", "cost"]} rows={data.map((line) => [
              <span title={line.group}>{nameOf(line)}</span>, number(line.runs), number(line.failed), number(line.input_tokens), number(line.output_tokens),
              line.seconds === null ? "" : line.seconds.toFixed(2), line.cost === null ? "" : cost(line.cost),
            ])} />
          </>
        )}
      </Loading>
      <Budgets tenant={tenant} />
    </div>
  );
}

function download(lines: UsageLine[], by: string): void {
  const names = ["group", "runs", "failed", "seconds", "input_tokens", "output_tokens", "cost"] as const;
  const quote = (value: unknown) => `"${String(value ?? "").replace(/"/g, '""').replace(/^([=+@\t\r-])/, "'$1")}"`;
  const text = [names.join(","), ...lines.map((line) => names.map((name) => (name === "group" ? quote(line[name]) : (line[name] ?? ""))).join(","))].join("\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `usage-by-${by}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** What a chart can show: a figure of each group, or several that belong together. */
const CHARTS: Record<string, { name: string; series: [label: string, colour: string, of: (line: UsageLine) => number | null][] }> = {
  tokens: { name: "Tokens", series: [["input", "--turn", (line) => line.input_tokens], ["output", "--call", (line) => line.output_tokens]] },
  runs: { name: "Runs and errors", series: [["runs", "--turn", (line) => line.runs], ["failed", "--bad", (line) => line.failed]] },
  latency: { name: "Latency", series: [["seconds (mean)", "--warn", (line) => line.seconds]] },
  cost: { name: "Cost", series: [["cost", "--good", (line) => line.cost]] },
};

type NameOf = (line: UsageLine) => string;

function Charts({ lines, by, nameOf }: { lines: UsageLine[]; by: string; nameOf: NameOf }) {
  const named = place.value.query.get("chart") ?? "";
  const chosen = (Object.hasOwn(CHARTS, named) ? CHARTS[named] : CHARTS.tokens)!;
  const isKnown = (name: string) => name !== "cost" || lines.some((line) => line.cost !== null);
  return (
    <figure class="card">
      <div class="tabs" role="group" aria-label="Chart">
        {Object.entries(CHARTS).filter(([name]) => isKnown(name)).map(([name, chart]) => (
          <button aria-pressed={chart === chosen} onClick={() => adjust({ chart: name })}>{chart.name}</button>
        ))}
      </div>
      {by === "day" && lines.length > 1 ? <Chart key={chosen.name} lines={lines} series={chosen.series} /> : <Bars lines={lines} series={chosen.series} nameOf={nameOf} />}
      <figcaption class="faint">
        {chosen.series.map(([label, colour]) => <span class="mark"><span class="swatch" style={{ background: `var(${colour})` }} aria-hidden="true" /> {label}</span>)}
        {" "}by {by}; the table below has the same figures
      </figcaption>
    </figure>
  );
}

type Series = (typeof CHARTS)[string]["series"];

/** The groups that have most of the first figure, as bars. */
function Bars({ lines, series, nameOf }: { lines: UsageLine[]; series: Series; nameOf: NameOf }) {
  const shown = [...lines].sort((a, b) => (series[0]![2](b) ?? 0) - (series[0]![2](a) ?? 0)).slice(0, 20);
  const most = Math.max(...shown.flatMap((line) => series.map(([, , of]) => of(line) ?? 0)), Number.MIN_VALUE);
  return (
    <div class="bars" aria-hidden="true">
      {shown.map((line) => (
        <>
          <span class="label">{nameOf(line)}</span>
          <span>
            {series.map(([, colour, of]) => <span class="barline" style={{ width: `${((of(line) ?? 0) / most) * 100}%`, background: `var(${colour})` }} data-none={of(line) ? undefined : ""} />)}
          </span>
        </>
      ))}
    </div>
  );
}

const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });
const NOTHING: UsageLine = { group: "", runs: 0, failed: 0, seconds: null, input_tokens: 0, output_tokens: 0, cost: 0 };

/** Every day from the first to the last: one on which nothing ran has its place, too. */
function fillDays(lines: UsageLine[]): [moment: number, line: UsageLine][] {
  const known = new Map(lines.map((line) => [Date.parse(line.group) / 1000, line]));
  const moments = [...known.keys()];
  const found: [number, UsageLine][] = [];
  for (let moment = Math.min(...moments); moment <= Math.max(...moments); moment += DAY) found.push([moment, known.get(moment) ?? NOTHING]);
  return found;
}

const brief = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });
/** Short, so that it has room beside the chart. */
const axisLabel = (value: number): string => brief.format(value);

const HEIGHT = 240;

/** Figures by day. */
function Chart({ lines, series }: { lines: UsageLine[]; series: Series }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let chart: { destroy: () => void; setSize: (size: { width: number; height: number }) => void } | null = null;
    let isWanted = true;
    void Promise.all([import("uplot"), import("uplot/dist/uPlot.min.css")]).then(([{ default: UPlot }]) => {
      if (!isWanted || !box.current) return;
      const style = getComputedStyle(box.current);
      const colour = (name: string) => style.getPropertyValue(name).trim();
      const days = fillDays(lines);
      const axis = { stroke: style.color, grid: { stroke: "#80808040", width: 1 } };
      chart = new UPlot(
        {
          width: box.current.clientWidth, height: HEIGHT, legend: { show: false }, tzDate: (moment) => UPlot.tzDate(new Date(moment * 1000), "UTC"),
          axes: [{ ...axis, space: 64, incrs: [1, 2, 7, 14, 28, 56, 112, 364].map((count) => count * DAY), values: (_, ticks) => ticks.map((moment) => date.format(moment * 1000)) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(axisLabel) }],
          series: [{}, ...series.map(([label, name]) => ({ label, stroke: pick(colour(name)), width: 2 }))],
        },
        [days.map(([moment]) => moment), ...series.map(([, , of]) => days.map(([, line]) => of(line)))],
        box.current,
      );
    });
    const watcher = new ResizeObserver(([seen]) => chart?.setSize({ width: Math.floor(seen!.contentRect.width), height: HEIGHT }));
    watcher.observe(box.current!);
    return () => {
      isWanted = false;
      watcher.disconnect();
      chart?.destroy();
    };
  }, [lines, series]);
  return <div ref={box} class="chart" aria-hidden="true" />;
}

/** A canvas knows no `light-dark()`: the colour of the theme in force. */
function pick(colour: string): string {
  const probe = document.createElement("span");
  probe.style.color = colour;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function BudgetMeter({ measure, used, held, limit }: StatementLine) {
  const share = (part: number) => `${Math.min(100, (part / (limit || 1)) * 100)}%`;
  const told = `${number(used)} of ${number(limit!)} used${held ? `, ${number(held)} held for runs under way` : ""}`;
  return (
    <div class="meter">
      <span class="label">{measure.replaceAll("_", " ")}</span>
      <span class="track" role="img" aria-label={`${measure}: ${told}`}>
        {used ? <span class={`span ${used >= limit! ? "bad" : "model"}`} style={{ left: "0", width: share(used) }} /> : null}
        {held ? <span class="span held" style={{ left: share(used), width: share(held) }} /> : null}
      </span>
      <span>{told}</span>
    </div>
  );
}

function Budgets({ tenant }: { tenant: string }) {
  const budgets = useLoaded(() => get<{ data: Statement[] }>("budgets", { tenant }), tenant);
  const [error, setError] = useState<unknown>(null);
  const change = async (id: string, what: string) => {
    await post(`budgets/${encodeURIComponent(id)}/${what}${tenant ? `?${new URLSearchParams({ tenant })}` : ""}`).then(() => setError(null), setError);
    budgets.reload();
  };
  return (
    <section>
      <h2>Budgets</h2>
      <Loading of={budgets}>
        {({ data }) => data.length === 0 ? <p class="faint">{hasTenants() && !tenant ? "The default tenant has no budget; choose a tenant to see its own." : "There is no budget."}</p> : (
          <>
            {error ? <Failure error={error} /> : null}
            {data.map((budget) => (
              <article class="card" key={budget.id}>
                <div class="bar">
                  <h3 class="name">{budget.id}</h3><span class={budget.state === "active" ? "faint" : "bad"}>{budget.state}</span><span class="fill" />
                  {!isOperator() ? null : budget.state === "suspended"
                    ? <button onClick={() => void change(budget.id, "activate")}>Activate</button>
                    : <button onClick={() => void change(budget.id, "suspend")}>Suspend</button>}
                </div>
                {budget.lines.filter((line) => line.limit !== null).map((line) => <BudgetMeter key={line.measure} {...line} />)}
                {budget.lines.some((line) => line.limit === null && line.used) ? (
                  <p class="faint">Without a limit: {budget.lines.filter((line) => line.limit === null && line.used).map((line) => `${line.measure.replaceAll("_", " ")} ${number(line.used)}`).join(", ")}</p>
                ) : null}
                {budget.runs.length ? <p class="faint">{budget.runs.length} {budget.runs.length === 1 ? "run holds" : "runs hold"} a share: {budget.runs.slice(0, 10).map((run) => <><a href={link(`runs/${run}`)}>{run}</a> </>)}</p> : null}
              </article>
            ))}
          </>
        )}
      </Loading>
    </section>
  );
}
