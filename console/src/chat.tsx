import { useEffect, useRef, useState } from "preact/hooks";
import { get, postStream } from "./api";
import { LiveRun } from "./live_run";
import { EntryView } from "./entry";
import { adjust, link, place } from "./router";
import { Failure, useTitle } from "./parts";

interface Model {
  id: string;
}

/** One question and the run that answers it. */
interface Exchange {
  id: string;
  live: LiveRun;
}

export function Chat() {
  useTitle("Chat");
  const [models, setModels] = useState<Model[]>([]);
  const [model, setModel] = useState(place.value.query.get("model") ?? "");
  const [text, setText] = useState("");
  const [exchanges, setExchanges] = useState<Exchange[]>([]);
  const [error, setError] = useState<unknown>(null);
  const asking = useRef<AbortController | null>(null);
  const before = useRef<string | null>(place.value.query.get("after"));
  useEffect(() => {
    get<{ data: Model[] }>("models").then((list) => {
      setModels(list.data);
      setModel((chosen) => chosen || list.data[0]?.id || "");
    }, setError);
    return () => exchanges.forEach((each) => each.live.stop());
  }, []);
  const ask = async (question: string, chosen: string) => {
    setError(null);
    asking.current = new AbortController();
    const previous = exchanges.at(-1)?.id ?? before.current;
    try {
      const body = { model: chosen, input: question, stream: true, background: true, ...(previous ? { previous_response_id: previous } : {}) };
      for await (const event of await postStream("responses", body, asking.current.signal)) {
        const told = JSON.parse(event.data);
        if (told.response?.id) {
          const id: string = told.response.id;
          setExchanges((known) => [...known, { id, live: new LiveRun(id) }]);
          asking.current.abort();
          return;
        }
      }
    } catch (failure) {
      if (!asking.current.signal.aborted) setError(failure);
    }
  };
  const first = place.value.query.get("ask");
  useEffect(() => {
    if (first && model && models.length) {
      adjust({ ask: null });
      void ask(first, model);
    }
  }, [first, model, models.length]);
  const send = (event: Event) => {
    event.preventDefault();
    const question = text.trim();
    if (!question) return;
    setText("");
    void ask(question, model);
  };
  return (
    <div class="page chat">
      <div class="bar">
        <h1>Chat</h1>
        <label class="inline">
          Model
          <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
            {models.some((each) => each.id === model) || !model ? null : <option value={model}>{model}</option>}
            {models.map((each) => <option value={each.id}>{each.id}</option>)}
          </select>
        </label>
        <span class="fill" />
        <button onClick={() => { setExchanges([]); before.current = null; adjust({ after: null }); }}>New conversation</button>
      </div>
      {before.current ? <p class="faint">Continues <a href={link(`runs/${before.current}`)}>{before.current}</a></p> : null}
      <div class="exchanges" aria-live="polite" aria-relevant="additions">
        {exchanges.map((each) => <ExchangeView key={each.id} exchange={each} />)}
      </div>
      {error ? <Failure error={error} /> : null}
      <form class="ask composer" onSubmit={send}>
        <label for="question" class="hidden">Your message</label>
        <textarea
          id="question" rows={2} placeholder="Ask something" value={text} onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); }}
        />
        <button class="main" disabled={!text.trim() || !model}>Send</button>
      </form>
    </div>
  );
}

function ExchangeView({ exchange }: { exchange: Exchange }) {
  const { live, id } = exchange;
  void live.drawn.value;
  return (
    <section aria-label="Exchange">
      <ol class="group">
        {live.model.entries.filter((entry) => entry.kind !== "end" || entry.tone !== "good").map((entry) => (
          <EntryView key={entry.key} entry={entry} revision={entry.revision} isChosen={false} runId={id} />
        ))}
      </ol>
      <p class="faint"><a href={link(`runs/${id}`)}>The run</a>{live.model.isOver ? "" : ", under way"}</p>
      {live.error.value ? <Failure error={live.error.value} /> : null}
    </section>
  );
}
