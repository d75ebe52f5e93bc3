import type { Model, ModelDetails, SettingList, ShownKey, ShownServer, ShownTool, SystemState, WorkerList } from "./api_types";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { get, post, remove } from "./api";
import { isOperator, mayUse, session, startSession } from "./session";
import { Code, Confirm, Failure, Grid, Loading, More, Said, Time, Tree, useList, useLoaded, useTitle } from "./parts";

export function System() {
  useTitle("System");
  const models = useLoaded(() => get<{ data: Model[] }>("models"));
  const servers = useLoaded(() => get<{ data: ShownServer[] }>("mcp_servers"));
  const tools = useList<ShownTool>("tools");
  return (
    <div class="page">
      <h1>System</h1>
      {isOperator() ? <ServerFacts /> : null}
      <section class="card">
        <h2>Models</h2>
        <Loading of={models}>{({ data }) => data.length ? data.map((each) => <ModelFacts key={each.id} model={each} />) : <p class="faint">No model was found. <code>mainspring doctor</code> says what was looked for.</p>}</Loading>
      </section>
      <section class="card">
        <h2>MCP servers</h2>
        <Loading of={servers}>{({ data }) => data.length ? data.map((each) => <ServerTools key={each.label} server={each} />) : <p class="faint">None is configured.</p>}</Loading>
      </section>
      <section class="card">
        <h2>Tools</h2>
        <Loading of={tools}>{(data) => data.length ? <Grid label="Tools" head={["tool", "declares", "what it does"]} rows={data.map((each) => [<code>{each.name}</code>, each.effects.join(", "), each.description])} /> : <p class="faint">None is configured.</p>}</Loading>
        <More of={tools} />
      </section>
      {mayUse("admin") ? <Keys /> : null}
      {isOperator() ? <Operation /> : null}
    </div>
  );
}

/** Who drives runs, and how the server is set: not for tenants. */
function Operation() {
  const workers = useLoaded(() => get<WorkerList>("workers"));
  const settings = useLoaded(() => get<SettingList>("settings"));
  const [wanted, want] = useState("");
  return (
    <>
      <section class="card">
        <h2>Workers</h2>
        <Loading of={workers}>{({ data, live, unfinished, claimable }) => (
          <>
            <p>{live} {live === 1 ? "run is" : "runs are"} driven here, {unfinished} {unfinished === 1 ? "has" : "have"} not ended{claimable ? `, and nobody drives ${claimable} of them` : ""}. Who drives a run holds a lease.</p>
            {data.length ? <Grid label="Workers" head={["process", "where", "this one"]} rows={data.map((each) => [each.pid, <span title={each.place}>{each.place.split(" ")[0]}</span>, each.is_self ? "yes" : ""])} /> : <p class="faint">No process holds one now.</p>}
          </>
        )}</Loading>
      </section>
      <section class="card">
        <h2>Settings in force</h2>
        <Loading of={settings}>{({ data, file }) => (
          <>
            <p class="faint">{file ? `File: ${file}` : "There is no settings file."}</p>
            <div class="filters">
              <label class="grow">Find a setting<input type="search" value={wanted} placeholder="part of its name, or where it is from" onInput={(event) => want(event.currentTarget.value)} /></label>
            </div>
            <SettingsTable settings={data} wanted={wanted.trim().toLowerCase()} />
          </>
        )}</Loading>
      </section>
    </>
  );
}

/** Those that somebody has set, and on demand or when they are looked for those that are as they come. */
function SettingsTable({ settings, wanted }: { settings: SettingList["data"]; wanted: string }) {
  const [isWhole, setWhole] = useState(false);
  const found = settings.filter((each) => `${each.name} ${each.source}`.toLowerCase().includes(wanted));
  const set = found.filter((each) => each.source !== "default");
  const others = found.length - set.length;
  const shown = isWhole || wanted ? [...set, ...found.filter((each) => each.source === "default")] : set;
  return (
    <>
      {shown.length ? <Grid label="Settings" head={["setting", "value", "from"]} rows={shown.map((each) => [<code>{each.name}</code>, <Tree value={each.value} />, each.source])} /> : null}
      {shown.length < found.length ? <button class="quiet" onClick={() => setWhole(true)}>Show {others} that are as they come</button> : null}
    </>
  );
}

function ServerFacts() {
  const system = useLoaded(() => get<SystemState>("system"));
  return <section class="card"><h2>Server</h2><Loading of={system}>{(value) => <dl class="facts-list">{factsOf(value).map(([name, told]) => <><dt>{name}</dt><dd>{told}</dd></>)}</dl>}</Loading></section>;
}

function list(value: unknown): string {
  if (Array.isArray(value)) return value.join(", ");
  return value !== null && typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name} ${each}`).join(", ") : String(value);
}

/** What the parts of its state mean, where their names do not say it. */
const SANDBOX: Record<string, string> = { totals: "limits by", isolates: "keeps apart", uid: "runs as user", warm: "ready for use", leases: "in use", refused: "refused as", languages: "programs" };

function factsOf(state: SystemState): [name: string, told: ComponentChildren][] {
  const { sandbox } = state;
  return [
    ["Version", state.version], ["Model", state.model], ["Provider", state.provider], ["Database", state.database], ["Audit", state.is_audited ? "kept" : "not kept"],
    ["Runs", `${state.live} under way here${state.drives ? "" : "; workers drive them"}`],
    ["Sandbox", sandbox === null ? "no tool needs one" : Object.entries(sandbox).filter(([name, value]) => name !== "is_ok" && (!Array.isArray(value) || value.length)).map(([name, value]) => <div>{SANDBOX[name] ?? name.replaceAll("_", " ")}: {list(value)}</div>)],
    ...(sandbox === null ? [] : [["Sandbox is", sandbox.is_ok ? "in order" : <span class="bad">not in order</span>] as [string, ComponentChildren]]),
  ];
}

/** An MCP server with its tools, those that cannot be used, and why it is down. */
function ServerTools({ server }: { server: ShownServer }) {
  const why = server.error ?? server.last_error;
  return (
    <details open={server.error !== null}>
      <summary><code>{server.label}</code> <span class={server.error === null ? "faint" : "bad"}>{server.state}</span> <span class="faint">{server.tools.length} {server.tools.length === 1 ? "tool" : "tools"}{server.latency_ms === null ? "" : `, ${Math.round(server.latency_ms)} ms`} {server.server} {server.protocol}</span></summary>
      {why ? <p class="bad"><Said text={why} /></p> : null}
      {server.tools.length ? <Grid label={`Tools of ${server.label}`} head={["tool", "what it does"]} rows={server.tools.map((each) => [<code>{each.name}</code>, each.description])} /> : null}
      {server.rejected.length ? <Grid label={`Tools of ${server.label} that cannot be used`} head={["not usable", "why"]} rows={server.rejected.map((each) => [<code>{each.name}</code>, <Said text={each.reason} />])} /> : null}
    </details>
  );
}

/** A model, and what is known of it: shipped, learned from its answers, found by the doctor, or set by an operator. */
function ModelFacts({ model }: { model: Model }) {
  const [isOpen, setOpen] = useState(false);
  const path = `models/${model.id.split("/").map(encodeURIComponent).join("/")}`;
  const known = useLoaded(async () => (isOpen ? get<ModelDetails>(path) : null), `${isOpen}`);
  const [error, setError] = useState<unknown>(null);
  const forget = () => remove(`${path}/profile`).then(() => { setError(null); known.reload(); }, setError);
  const facts = (known.value?.profiles ?? []).flatMap((profile) => Object.entries(profile.facts).map(([field, fact]) => ({ field, fact, provider: profile.provider })));
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary><code>{model.id}</code> <span class="faint">{model.owned_by}</span></summary>
      {known.error || error ? <Failure error={known.error ?? error} /> : null}
      {known.value && !facts.length ? <p class="faint">Nothing special is known of it. <code>mainspring doctor</code> examines it.</p> : null}
      {facts.length ? (
        <>
          <Grid label={`What is known of ${model.id}`} head={["field", "value", "who says so", "why", "until"]} rows={facts.map(({ field, fact }) => [
            <code>{field}</code>, <code>{JSON.stringify(fact.value)}</code>, fact.source, fact.evidence ?? "", fact.until ? <Time at={fact.until} /> : "",
          ])} />
          {isOperator() && facts.some(({ fact }) => fact.source === "learned") ? <button onClick={() => void forget()}>Forget what was learned</button> : null}
        </>
      ) : null}
    </details>
  );
}

function Keys() {
  const keys = useList<ShownKey>("keys");
  const [form, setForm] = useState({ name: "", tenant: "", scopes: "*", days: "" });
  const [made, setMade] = useState<ShownKey | null>(null);
  const [error, setError] = useState<unknown>(null);
  const act = async (what: () => Promise<ShownKey | null>) => {
    try {
      const done = await what();
      // The first key ends that everybody on this machine may come in: whoever made it stays, as its owner.
      if (done?.key && !session.value?.needs_key) await post("session", { key: done.key }).then(startSession);
      setMade(done);
      setError(null);
      keys.reload();
    } catch (failure) {
      setError(failure);
    }
  };
  const create = (event: Event) => {
    event.preventDefault();
    const body = {
      name: form.name.trim(), scopes: form.scopes.split(/[\s,]+/).filter(Boolean), ...(form.tenant.trim() ? { tenant: form.tenant.trim() } : {}),
      ...(Number(form.days) > 0 ? { seconds: Number(form.days) * 86_400 } : {}),
    };
    void act(() => post<ShownKey>("keys", body));
  };
  const field = (name: keyof typeof form, label: string, kind = {}) => (
    <label>{label}<input {...kind} value={form[name]} onInput={(event) => setForm({ ...form, [name]: event.currentTarget.value })} /></label>
  );
  return (
    <section class="card">
      <h2>API keys</h2>
      <form class="filters" onSubmit={create}>
        {field("name", "Name")}{field("tenant", "Tenant")}{field("scopes", "Scopes")}{field("days", "Days it lasts", { type: "number", min: "0", step: "any", placeholder: "no end" })}
        <button>Create a key</button>
      </form>
      <div role="status">{made?.key ? <><p>Store this key now, it cannot be shown again:</p><Code text={made.key} label="The new key" /></> : null}</div>
      {error ? <Failure error={error} /> : null}
      <Loading of={keys}>
        {(data) => data.length === 0 ? <p class="faint">There is none: only this machine may use the server, without a key. The first key ends that.</p> : (
          <Grid label="API keys" head={["name", "tenant", "scopes", "created", "state", <span class="hidden">what can be done</span>]} rows={data.map((key) => [
            key.name || key.id, key.tenant, key.scopes.join(", "), <Time at={key.created_at} />,
            key.revoked_at ? <span class="bad">revoked</span> : key.expires_at && key.expires_at < Date.now() / 1000 ? <span class="bad">expired</span> : key.expires_at ? <>until <Time at={key.expires_at} /></> : "valid",
            key.revoked_at ? "" : <Confirm label={`Revoke ${key.name || key.id}`} act={() => void act(() => remove<ShownKey>(`keys/${encodeURIComponent(key.id)}`).then(() => null))} />,
          ])} />
        )}
      </Loading>
      <More of={keys} />
    </section>
  );
}
