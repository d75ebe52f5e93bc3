import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, postStream, remove } from "./api";
import { type Approval, approvals } from "./approvals_data";
import { ApprovalCard } from "./approvals";
import { EntryView } from "./entry";
import { visible } from "./format";
import { LiveRun } from "./live_run";
import { Markdown } from "./markdown";
import { adjust, go, link, place } from "./router";
import { textOf } from "./run_model";
import { Failure, useLoaded, useTitle } from "./parts";

interface Conversation {
  id: string;
  title: string;
  metadata: Record<string, string>;
}

/** One question and the run that answers it. */
interface Exchange {
  id: string;
  live: LiveRun;
}

export function Chat() {
  useTitle("Chat");
  const models = useLoaded(() => get<{ data: { id: string }[] }>("models"));
  const names = (models.value?.data ?? []).map((each) => each.id);
  const [picked, pick] = useState(place.value.query.get("model") ?? "");
  const model = picked || names[0] || "";
  const [text, setText] = useState("");
  const [exchanges, setExchanges] = useState<Exchange[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [changed, setChanged] = useState(0);
  const after = place.value.query.get("after");
  const conversation = place.value.query.get("c");
  const started = useRef<string | null>(null);
  useEffect(() => {
    // What was begun here is shown as it happens; another conversation is read.
    if (conversation !== started.current) setExchanges([]);
    started.current = conversation;
  }, [conversation]);
  const follow = (id: string) => setExchanges((known) => [...known, { id, live: new LiveRun(id) }]);
  const ask = async (question: string) => {
    setError(null);
    const stopping = new AbortController();
    try {
      let into: Record<string, string> = after ? { previous_response_id: exchanges.at(-1)?.id ?? after } : {};
      if (!after) {
        const id = conversation ?? (await post<Conversation>("conversations", {})).id;
        started.current = id;
        adjust({ c: id });
        into = { conversation: id };
      }
      const body = { model, input: question, stream: true, background: true, ...into };
      for await (const event of await postStream("responses", body, stopping.signal)) {
        const told = JSON.parse(event.data);
        if (!told.response?.id) continue;
        follow(told.response.id);
        setChanged((before) => before + 1);
        break;
      }
      stopping.abort();
    } catch (failure) {
      setError(failure);
    }
  };
  const first = place.value.query.get("ask");
  useEffect(() => {
    if (!first || !model) return;
    adjust({ ask: null });
    void ask(first);
  }, [first, model]);
  const send = (event: Event) => {
    event.preventDefault();
    const question = text.trim();
    if (!question || !model) return;
    setText("");
    void ask(question);
  };
  return (
    <div class="page wide chat">
      <Conversations chosen={conversation} changed={changed} />
      <div class="talk">
        <div class="bar">
          <h1>Chat</h1>
          <label class="inline">
            Model
            <select value={model} onChange={(event) => pick(event.currentTarget.value)}>
              {names.includes(model) || !model ? null : <option value={model}>{model}</option>}
              {names.map((name) => <option value={name}>{name}</option>)}
            </select>
          </label>
          <span class="fill" />
          <button onClick={() => { setExchanges([]); go("chat"); }}>New conversation</button>
        </div>
        {after ? <p class="faint">Continues <a href={link(`runs/${after}`)}>{after}</a></p> : null}
        {conversation && !exchanges.length ? <Said conversation={conversation} /> : null}
        {exchanges.map((each) => <ExchangeView key={each.id} exchange={each} follow={follow} />)}
        {error || models.error ? <Failure error={error ?? models.error} /> : null}
        <form class="ask composer" onSubmit={send}>
          <label for="question" class="hidden">Your message</label>
          <textarea
            id="question" rows={2} placeholder="Ask something" value={text} onInput={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); }}
          />
          <button class="main" disabled={!text.trim() || !model}>Send</button>
        </form>
      </div>
    </div>
  );
}

function Conversations({ chosen, changed }: { chosen: string | null; changed: number }) {
  const [search, setSearch] = useState("");
  const list = useLoaded(() => get<{ data: Conversation[] }>("conversations", { q: search, limit: 50 }), `${search} ${changed}`);
  const [renamed, rename] = useState<Conversation | null>(null);
  const save = async (event: Event) => {
    event.preventDefault();
    await post(`conversations/${renamed!.id}`, { metadata: { ...renamed!.metadata, title: renamed!.title } });
    rename(null);
    list.reload();
  };
  const forget = async (id: string) => {
    await remove(`conversations/${id}`);
    if (id === chosen) go("chat");
    list.reload();
  };
  return (
    <nav class="conversations" aria-label="Conversations">
      <label><span class="hidden">Search conversations</span><input type="search" placeholder="Search conversations" value={search} onInput={(event) => setSearch(event.currentTarget.value)} /></label>
      {list.error ? <Failure error={list.error} /> : null}
      <ul>
        {(list.value?.data ?? []).map((each) => (
          <li key={each.id} class={each.id === chosen ? "chosen" : ""}>
            {renamed?.id === each.id ? (
              <form onSubmit={(event) => void save(event)}>
                <input aria-label="Title" value={renamed.title} onInput={(event) => rename({ ...renamed, title: event.currentTarget.value })} />
                <button class="quiet">Save</button>
              </form>
            ) : (
              <>
                <a href={link("chat", { c: each.id })} aria-current={each.id === chosen ? "page" : undefined}>{visible(each.title) || "New conversation"}</a>
                {each.id === chosen ? (
                  <div class="actions">
                    <button class="quiet" onClick={() => rename(each)}>Rename</button>
                    <button class="quiet" onClick={() => void forget(each.id)}>Delete</button>
                  </div>
                ) : null}
              </>
            )}
          </li>
        ))}
      </ul>
    </nav>
  );
}

/** What was said in a conversation so far. */
function Said({ conversation }: { conversation: string }) {
  const items = useLoaded(() => get<{ data: any[] }>(`conversations/${conversation}/items`, { order: "asc", limit: 100 }), conversation);
  if (items.error) return <Failure error={items.error} />;
  return (
    <ol class="group">
      {(items.value?.data ?? []).filter((item) => item.role || item.name).map((item) => (
        <li class={`entry ${item.role === "user" ? "input" : item.role ? "message" : "call"}`}>
          <div class="head"><span class="who">{item.role === "user" ? "Asked" : item.role ? "Answer" : visible(item.name)}</span></div>
          <Markdown text={item.role ? textOf(item.content) : String(item.arguments ?? "")} />
        </li>
      ))}
    </ol>
  );
}

function ExchangeView({ exchange, follow }: { exchange: Exchange; follow: (id: string) => void }) {
  const { live, id } = exchange;
  void live.drawn.value;
  const { model } = live;
  const waiting = model.reason === "approval_needed" ? (approvals.value ?? []).filter((each: Approval) => each.response_id === id) : [];
  useEffect(() => () => live.stop(), [live]);
  return (
    <section aria-label="Exchange">
      <ol class="group">
        {model.entries.filter((entry) => entry.kind !== "end" || entry.tone !== "good").map((entry) => (
          <EntryView key={entry.key} entry={entry} revision={entry.revision} isChosen={false} runId={id} />
        ))}
      </ol>
      {waiting.map((each) => <ApprovalCard key={each.id} approval={each} answered={(run) => run && follow(run)} />)}
      <div class="actions">
        <a class="button quiet" href={link(`runs/${id}`)}>The run</a>
        {model.isOver ? null : <button class="quiet" onClick={() => void post(`runs/${id}/cancel`)}>Stop</button>}
      </div>
      {live.error.value ? <Failure error={live.error.value} /> : null}
    </section>
  );
}
