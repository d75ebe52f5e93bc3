import { useEffect, useState } from "preact/hooks";
import { get, type Json, post } from "./api";
import type { AuditRecord, SettingList, ShownTool } from "./api_types";
import { Verdict } from "./entry";
import { tenantOf } from "./format";
import { Inline } from "./markdown";
import { adjust, link, place } from "./router";
import { isOperator } from "./session";
import { Failure, Grid, Loading, More, Said, Time, Tree, useList, useLoaded, useTitle } from "./parts";

interface Policy {
  policies: { name: string; description: string }[];
  steps: string[];
  is_audited: boolean;
}

export function Governance() {
  useTitle("Governance");
  const policy = useLoaded(() => get<Policy>("policy"));
  return (
    <div class="page">
      <h1>Governance</h1>
      <section class="card">
        <h2>Policies, in the order they are asked</h2>
        <Loading of={policy}>
          {({ policies, steps }) => (
            <>
              <ol class="policies">{policies.map((each) => <li><code>{each.name}</code> <Inline text={each.description} /></li>)}</ol>
              <p class="faint">Before a run starts: {steps.join(", ")}.</p>
            </>
          )}
        </Loading>
        {isOperator() ? <PolicySettings /> : null}
      </section>
      <Try />
      <Audit />
    </div>
  );
}

const TABLES = /^(governance|budget|limits)\b/;

/** What the operator has set for the policies; all else is as it comes. */
function PolicySettings() {
  const settings = useLoaded(() => get<SettingList>("settings"));
  return (
    <Loading of={settings}>
      {({ data }) => {
        const own = data.filter((each) => TABLES.test(each.name));
        const set = own.filter((each) => each.source !== "default");
        return (
          <details open={set.length > 0 && set.length <= 12}>
            <summary>Settings of the policies: {set.length} of {own.length} are set</summary>
            {set.length ? <Grid label="Settings of the policies" head={["setting", "value", "from"]} rows={set.map((each) => [<code>{each.name}</code>, <Tree value={each.value} />, each.source])} /> : null}
            <p class="faint"><a href={link("system")}>System</a> lists those that are as they come.</p>
          </details>
        );
      }}
    </Loading>
  );
}

const EMPTY: Record<string, Json> = { string: "", integer: 0, number: 0, boolean: false, array: [], object: {} };

/** The arguments that a tool needs, to be filled in. */
function outline(parameters: any): string {
  const needed: string[] = parameters?.required ?? [];
  const kind = (name: string) => [parameters.properties?.[name]?.type].flat()[0];
  return JSON.stringify(Object.fromEntries(needed.map((name) => [name, EMPTY[kind(name)] ?? null])), null, 2);
}

function Try() {
  const [tool, setTool] = useState("");
  const [given, setGiven] = useState("{}");
  /** What was not typed by a person, and may be replaced. */
  const [offered, offer] = useState("{}");
  const tools = useLoaded(() => get<{ data: ShownTool[] }>("tools", { limit: 100 }));
  const chosen = tools.value?.data.find((each) => each.name === tool.trim());
  useEffect(() => {
    if (!chosen || given !== offered) return;
    offer(outline(chosen.parameters));
    setGiven(outline(chosen.parameters));
  }, [chosen]);
  const [error, setError] = useState<unknown>(null);
  const [verdict, setVerdict] = useState<{ verdict: string; policy: string; reason: string } | null>(null);
  const send = async (event: Event) => {
    event.preventDefault();
    setVerdict(null);
    try {
      setVerdict(await post("policy/try", { tool: tool.trim(), arguments: JSON.parse(given) }));
      setError(null);
    } catch (failure) {
      setError(failure instanceof SyntaxError ? new Error("The arguments are not JSON.") : failure);
    }
  };
  return (
    <section class="card">
      <h2>Try a call</h2>
      <p class="faint">Nothing is performed: the policies are asked which of them would decide.</p>
      <form class="ask" onSubmit={send}>
        <label for="tool">Tool</label>
        <input id="tool" list="tools" value={tool} onInput={(event) => setTool(event.currentTarget.value)} required />
        <datalist id="tools">{(tools.value?.data ?? []).map((each) => <option value={each.name}>{each.description}</option>)}</datalist>
        <label for="arguments">Arguments (JSON)</label>
        <textarea id="arguments" rows={3} value={given} onInput={(event) => setGiven(event.currentTarget.value)} />
        <button class="main">Try</button>
      </form>
      <p role="status" class="section">
        {verdict ? <Verdict {...verdict} /> : null}
      </p>
      {error ? <Failure error={error} /> : null}
    </section>
  );
}

const FILTERS = ["run", "tool", "subject", "outcome", "policy"] as const;
const KINDS = ["approval", "ended", "flagged", "judged", "run_ended", "started", "triggered"];

function Audit() {
  const query = place.value.query;
  const asked = Object.fromEntries([...FILTERS, "what", "call"].map((name) => [name, query.get(name) ?? ""]));
  const audit = useList<AuditRecord>("audit", asked);
  const [proof, setProof] = useState<{ is_whole: boolean; records: number; flaw: string | null } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const verify = () => get<typeof proof>("audit/verify").then(setProof, setError);
  return (
    <section>
      <div class="bar">
        <h2>Audit</h2>
        {isOperator() ? <button onClick={() => void verify()}>Verify</button> : null}
        <span role="status" class={proof && !proof.is_whole ? "bad" : "faint"}>
          {proof ? (proof.is_whole ? `Whole: ${proof.records} records` : `Broken: ${proof.flaw}`) : ""}
        </span>
      </div>
      <div class="filters">
        <label>
          What
          <select value={asked.what} onChange={(event) => adjust({ what: event.currentTarget.value })}>
            <option value="">anything</option>
            {KINDS.map((kind) => <option value={kind}>{kind.replace("_", " ")}</option>)}
          </select>
        </label>
        {FILTERS.map((name) => (
          <label>{name === "subject" ? "Who" : name[0]!.toUpperCase() + name.slice(1)}
            <input value={asked[name]} placeholder={name === "run" ? "id" : ""} onChange={(event) => adjust({ [name]: event.currentTarget.value.trim() })} />
          </label>
        ))}
      </div>
      {error ? <Failure error={error} /> : null}
      <Loading of={audit}>
        {(data) => data.length === 0 ? <p class="faint">The audit has no such record.</p> : (
          <><Grid label="Audit" head={["when", "tool", "what", "who", "run"]} rows={data.map((record) => [
            record.entry?.at ? <Time at={record.entry.at} /> : "", record.entry?.tool ? <code>{record.entry.tool}</code> : "", <span class="said"><Said text={record.said} /></span>,
            [record.entry?.subject, tenantOf(record.entry?.tenant ?? "")].filter(Boolean).join(" of "),
            record.entry?.run ? <a href={link(`runs/${record.entry.run}`)}>{record.entry.run.slice(0, 14)}…</a> : "",
          ])} /><More of={audit} /></>
        )}
      </Loading>
    </section>
  );
}
