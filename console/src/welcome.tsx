import type { Model } from "./api_types";
import { useState } from "preact/hooks";
import { get, post, serverUrl, siteAddress } from "./api";
import { go, link } from "./router";
import { exampleHeader, exampleKey, mayUse } from "./session";
import { Code, Failure, useLoaded, useTitle } from "./parts";

export function Welcome() {
  useTitle("Welcome");
  const models = useLoaded(() => get<{ data: Model[] }>("models"));
  const model = models.value?.data[0]?.id ?? "";
  return (
    <div class="page welcome">
      <header class="hero">
        <h1>Mainspring is running</h1>
        <p>An engine for agents on your own machine. What to try first:</p>
      </header>
      <div class="cards">
        {mayUse("responses") ? <Demo /> : null}
        {mayUse("conversations") ? <Talk model={model} isKnown={models.value !== null} /> : null}
      </div>
      <Calls model={model || "NAME"} />
    </div>
  );
}

function Demo() {
  const [error, setError] = useState<unknown>(null);
  const [isStarting, setStarting] = useState(false);
  const start = async () => {
    setStarting(true);
    try {
      go(`runs/${(await post<{ id: string }>("demo")).id}`);
    } catch (failure) {
      setError(failure);
      setStarting(false);
    }
  };
  return (
    <section class="card">
      <h2>Watch an agent work</h2>
      <p>Three friends share the costs of a journey. The agent reads their notes, does the sums with a calculator and says who owes whom.</p>
      <p class="faint">The model is a script, the tools are real. No key is needed.</p>
      <button class="main" onClick={start} disabled={isStarting}>Start the demo</button>
      {error ? <Failure error={error} /> : null}
    </section>
  );
}

function Talk({ model, isKnown }: { model: string; isKnown: boolean }) {
  const [text, setText] = useState("");
  const ask = (event: Event) => {
    event.preventDefault();
    go("chat", { ask: text.trim() });
  };
  return (
    <section class="card">
      <h2>Talk to the model</h2>
      {isKnown && !model ? (
        <p>No model answers yet. <a href={link("system")}>System</a> says what was looked for.</p>
      ) : (
        <p>{model ? <>This server found <code>{model}</code>.</> : null}</p>
      )}
      <form class="ask" onSubmit={ask}>
        <label for="ask">Your question</label>
        <textarea id="ask" rows={2} value={text} onInput={(event) => setText(event.currentTarget.value)} required />
        <button class="main" disabled={!text.trim()}>Ask</button>
      </form>
    </section>
  );
}

const EXAMPLES = {
  curl: (model: string) =>
    `curl ${serverUrl}/responses${exampleHeader()} \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify({ model, input: "Hello" })}'`,
  Python: (model: string) =>
    `from openai import OpenAI\n\nclient = OpenAI(base_url="${serverUrl}", api_key="${exampleKey()}")\nanswer = client.responses.create(model="${model}", input="Hello")\nprint(answer.output_text)`,
  JavaScript: (model: string) =>
    `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${serverUrl}", apiKey: "${exampleKey()}" });\nconst answer = await client.responses.create({ model: "${model}", input: "Hello" });\nconsole.log(answer.output_text);`,
};

type Language = keyof typeof EXAMPLES;

function Calls({ model }: { model: string }) {
  const [chosen, choose] = useState<Language>("curl");
  const names = Object.keys(EXAMPLES) as Language[];
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(chosen) + step + names.length) % names.length]!;
    choose(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <section class="card">
      <h2>Call it from your own code</h2>
      <p>It speaks the OpenAI Responses API at <code>{serverUrl}</code>. {mayUse("admin") ? <><a href={siteAddress("/docs")}>The reference</a> has every route, to be tried there.</> : null}</p>
      <div role="tablist" aria-label="Language" class="tabs" onKeyDown={move}>
        {names.map((name) => (
          <button
            role="tab" id={`tab-${name}`} aria-selected={name === chosen} aria-controls="example" tabIndex={name === chosen ? 0 : -1}
            onClick={() => choose(name)}
          >
            {name}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="example" aria-labelledby={`tab-${chosen}`}>
        <Code text={EXAMPLES[chosen](model)} label={`Example in ${chosen}`} />
      </div>
    </section>
  );
}
