import type { Approval, ChatMessages, ChatReply, ListedChat, ListedConversation, ShownMessage } from "./api_types";
import { useEffect, useRef, useState } from "preact/hooks";
import { renew } from "./again";
import { get, getAll, post, postStream, remove } from "./api";
import { approvals } from "./approvals_data";
import { ApprovalCard } from "./approvals";
import { readItems } from "./conversation_items";
import { EntryView, type EntryAction } from "./entry";
import { useFollowing } from "./following";
import { LiveRun } from "./live_run";
import { Markdown } from "./markdown";
import { adjust, go, link, place } from "./router";
import { textOf } from "./run_model";
import { changes } from "./runs_data";
import { Confirm, Empty, Failure, More, useList, useLoaded, useTitle } from "./parts";

/** One question and the run that answers it. */
interface Exchange {
  id: string;
  live: LiveRun;
}

/** A file that goes with the next question. */
interface Attached {
  id: string;
  name: string;
  isImage: boolean;
}

/** A question that is asked once more, in a conversation that parts from this one before it. */
interface Edited {
  itemId: string;
  text: string;
}

const TASKS = "tasks";
const PAGE = 20;

async function attach(file: File): Promise<Attached> {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", file);
  const made = await post<{ id: string }>("files", form);
  return { id: made.id, name: file.name, isImage: file.type.startsWith("image/") };
}

/** A conversation with what was said in another before one of its items. */
async function branch(conversation: string, itemId: string): Promise<string> {
  const items = await getAll<any>(`conversations/${encodeURIComponent(conversation)}/items`, { order: "asc" });
  const kept = renew(items.slice(0, items.findIndex((item) => item.id === itemId)));
  const { id } = await post<ListedConversation>("conversations", { metadata: { branch_of: conversation } });
  for (let at = 0; at < kept.length; at += PAGE) await post(`conversations/${id}/items`, { items: kept.slice(at, at + PAGE) });
  return id;
}

function contentOf(question: string, files: Attached[]) {
  if (!files.length) return question;
  const parts = files.map((file) => (file.isImage ? { type: "input_image", file_id: file.id } : { type: "input_file", file_id: file.id }));
  return [{ role: "user", content: [{ type: "input_text", text: question }, ...parts] }];
}

export function Chat() {
  useTitle("Chat");
  const models = useLoaded(() => get<{ data: { id: string }[] }>("models"));
  const agents = useLoaded(() => get<{ data: { name: string }[] }>("agents").catch(() => ({ data: [] })));
  const tools = useLoaded(() => get<{ data: { name: string; description: string }[] }>("tools", { limit: 100 }));
  // Agents are models, too; they have a group of their own.
  const names = (models.value?.data ?? []).map((each) => each.id).filter((id) => !id.startsWith("agent:"));
  const [off, setOff] = useState<string[]>([]);
  const [files, setFiles] = useState<Attached[]>([]);
  const [edited, setEdited] = useState<Edited | null>(null);
  /** The conversation whose past is shown: one that was found in the list, or that parts from another. */
  const [before, setBefore] = useState<string | null>(null);
  const model = place.value.query.get("model") || names[0] || "";
  const [text, setText] = useState("");
  const [exchanges, setExchanges] = useState<Exchange[]>([]);
  const [error, setError] = useState<unknown>(null);
  const [changed, setChanged] = useState(0);
  const after = place.value.query.get("after");
  const conversation = place.value.query.get("c");
  const started = useRef("");
  useEffect(() => {
    // What was begun here is shown as it happens; another conversation is read, but for the run that its address names.
    const run = place.value.query.get("run");
    if (started.current !== `${conversation} ${after}`) {
      setExchanges(run ? [{ id: run, live: new LiveRun(run) }] : []);
      setEdited(null);
      setBefore(conversation);
    }
    started.current = `${conversation} ${after}`;
  }, [conversation, after]);
  const follow = (id: string) => {
    setExchanges((known) => (known.some((each) => each.id === id) ? known : [...known, { id, live: new LiveRun(id) }]));
    adjust({ run: id });
  };
  const ask = async (question: string) => {
    setError(null);
    const stopping = new AbortController();
    try {
      let into: Record<string, string> = after ? { previous_response_id: exchanges.at(-1)?.id ?? after } : {};
      if (!after) {
        const parted = conversation && edited ? await branch(conversation, edited.itemId) : null;
        const id = parted ?? conversation ?? (await post<ListedConversation>("conversations", { metadata: { model } })).id;
        // What was said before the edited question is read again, and what follows is shown as it happens.
        if (parted) setExchanges([]);
        started.current = `${id} ${after}`;
        setBefore(parted);
        adjust({ c: id, run: null });
        into = { conversation: id };
      }
      const body = { model, input: contentOf(question, files), stream: true, background: true, ...into, ...chooseTools() };
      for await (const event of await postStream("responses", body, stopping.signal)) {
        const told = JSON.parse(event.data);
        if (!told.response?.id) continue;
        follow(told.response.id);
        setFiles([]);
        setEdited(null);
        setChanged((before) => before + 1);
        break;
      }
      stopping.abort();
    } catch (failure) {
      setError(failure);
      setText(question);
    }
  };
  const chooseTools = () => {
    const on = (tools.value?.data ?? []).map((each) => each.name).filter((name) => !off.includes(name));
    if (!off.length) return {};
    return on.length ? { allowed_tools: on } : { tool_choice: "none" };
  };
  const edit = (question: Edited) => {
    setEdited(question);
    setText(question.text);
    document.getElementById("question")?.focus();
  };
  const told = changes.value;
  useEffect(() => {
    // The list has the title of a conversation once something was said in it.
    if (exchanges.some((each) => each.id === told?.id)) setChanged((before) => before + 1);
  }, [told]);
  const first = place.value.query.get("ask");
  useEffect(() => {
    if (!first || !model) return;
    adjust({ ask: null });
    void ask(first);
  }, [first, model]);
  const take = async (input: HTMLInputElement) => {
    const chosen = [...(input.files ?? [])];
    input.value = "";
    try {
      for (const file of chosen) {
        const made = await attach(file);
        setFiles((known) => [...known, made]);
      }
      setError(null);
    } catch (failure) {
      setError(failure);
    }
  };
  const send = (event: Event) => {
    event.preventDefault();
    const question = text.trim();
    if (!question || !model) return;
    setText("");
    void ask(question);
  };
  return (
    <div class="page wide chat">
      {model === TASKS ? <TaskConversations /> : <Conversations chosen={conversation} changed={changed} />}
      <div class="talk">
        <div class="bar">
          <h1>Chat</h1>
          <label class="inline">
            Model
            <select value={model} onChange={(event) => adjust({ model: event.currentTarget.value, t: null })}>
              {names.includes(model) || !model || model === TASKS || model.startsWith("agent:") ? null : <option value={model}>{model}</option>}
              {names.map((name) => <option value={name}>{name}</option>)}
              <optgroup label="Agents">
                {(agents.value?.data ?? []).map((each) => <option value={`agent:${each.name}`}>{each.name}</option>)}
                <option value={TASKS}>Task agent</option>
              </optgroup>
            </select>
          </label>
          {model === TASKS ? null : <Switches tools={tools.value?.data ?? []} off={off} change={setOff} />}
          <span class="fill" />
          <button onClick={() => { setExchanges([]); go("chat", { model: place.value.query.get("model") }); }}>New conversation</button>
        </div>
        {after ? <p class="faint">Goes on after <a href={link(`runs/${after}`)}>this run</a>.</p> : null}
        {model === TASKS ? <Tasks /> : (
          <>
            {conversation && before === conversation ? <Said conversation={conversation} first={exchanges[0] ?? null} edit={edit} follow={follow} /> : null}
            {!conversation && !after && !exchanges.length ? <Empty><p>Ask {model ? <code>{model}</code> : "a model"} something, or choose an agent above.</p><p class="faint">Enter sends, Shift and Enter begins a new line.</p></Empty> : null}
            {exchanges.map((each, at) => <ExchangeView key={each.id} exchange={each} isLast={at === exchanges.length - 1} follow={follow} edit={conversation ? edit : null} />)}
            {error || models.error ? <Failure error={error ?? models.error} /> : null}
            {edited ? <p class="faint">You edit an earlier question; what followed it stays in the conversation it is in. <button class="quiet" onClick={() => { setEdited(null); setText(""); }}>Do not edit</button></p> : null}
            <form class="ask composer" onSubmit={send}>
              {files.length ? <ul class="files" aria-label="Attached files">{files.map((file) => <li key={file.id}>{file.name} <button class="quiet" aria-label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((each) => each !== file))}>Remove</button></li>)}</ul> : null}
              <label class="button attach">
                Attach
                <input type="file" multiple class="hidden" onChange={(event) => { void take(event.currentTarget); }} />
              </label>
              <label for="question" class="hidden">Your message</label>
              <textarea
                id="question" rows={2} placeholder="Ask something" value={text} onInput={(event) => setText(event.currentTarget.value)}
                onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); }}
              />
              <button class="main" disabled={!text.trim() || !model}>Send</button>
            </form>
          </>
        )}
      </div>
    </div>
  );
}

function Conversations({ chosen, changed }: { chosen: string | null; changed: number }) {
  const [search, setSearch] = useState("");
  const list = useList<ListedConversation>("conversations", { q: search, limit: 50 });
  useEffect(() => {
    if (changed) list.reload();
  }, [changed]);
  const [renamed, rename] = useState<ListedConversation | null>(null);
  const [error, setError] = useState<unknown>(null);
  const act = (what: Promise<unknown>, then: () => void) => void what.then(() => { setError(null); then(); list.reload(); }, setError);
  const save = (event: Event) => {
    event.preventDefault();
    act(post(`conversations/${renamed!.id}`, { metadata: { ...renamed!.metadata, title: renamed!.title } }), () => rename(null));
  };
  const forget = (id: string) => act(remove(`conversations/${id}`), () => { if (id === chosen) go("chat"); });
  return (
    <nav class="conversations" aria-label="Conversations">
      <label><span class="hidden">Search conversations</span><input type="search" placeholder="Search conversations" value={search} onInput={(event) => setSearch(event.currentTarget.value)} /></label>
      {list.error || error ? <Failure error={list.error ?? error} /> : null}
      {list.value?.length === 0 ? <p class="faint none">{search ? "No conversation has this." : "Conversations are kept here."}</p> : null}
      <ul>
        {(list.value ?? []).map((each) => (
          <li key={each.id} class={each.id === chosen ? "chosen" : ""}>
            {renamed?.id === each.id ? (
              <form onSubmit={save}>
                <input aria-label="Title" value={renamed.title} onInput={(event) => rename({ ...renamed, title: event.currentTarget.value })} />
                <button class="quiet">Save</button>
              </form>
            ) : (
              <>
                <a href={link("chat", { c: each.id, model: each.metadata.model })} dir="auto" aria-current={each.id === chosen ? "page" : undefined}>{each.title || "New conversation"}</a>
                {each.id === chosen ? (
                  <div class="actions">
                    <button class="quiet" onClick={() => rename(each)}>Rename</button>
                    <Confirm label="Delete" act={() => forget(each.id)} />
                  </div>
                ) : null}
              </>
            )}
          </li>
        ))}
      </ul>
      <More of={list} />
    </nav>
  );
}

/** Which tools of the server the model may call. */
function Switches({ tools, off, change }: { tools: { name: string; description: string }[]; off: string[]; change: (off: string[]) => void }) {
  if (!tools.length) return null;
  return (
    <details class="switches">
      <summary>Tools ({tools.length - off.length} of {tools.length})</summary>
      <div class="card">
        {tools.map(({ name, description }) => (
          <label class="check" title={description}>
            <input type="checkbox" checked={!off.includes(name)} onChange={(event) => change(event.currentTarget.checked ? off.filter((each) => each !== name) : [...off, name])} />
            <code>{name}</code>
          </label>
        ))}
      </div>
    </details>
  );
}

/** A talk with the task agent, which keeps its own conversations. */
function Tasks() {
  const id = place.value.query.get("t");
  const [messages, setMessages] = useState<ShownMessage[] | null>(null);
  const [text, setText] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  /** The conversation that is on the page: another one is read. */
  const shown = useRef<string | null>(null);
  useEffect(() => {
    if (shown.current === id && messages) return;
    shown.current = id;
    setMessages(id ? null : []);
    setError(null);
    if (!id) return;
    const isWanted = () => shown.current === id;
    get<ChatMessages>(`chat/conversations/${encodeURIComponent(id)}`).then((read) => isWanted() && setMessages(read.messages), (failure) => isWanted() && setError(failure));
  }, [id]);
  const send = async (event: Event) => {
    event.preventDefault();
    const content = text.trim();
    if (!content || isBusy || !messages) return;
    setText("");
    setBusy(true);
    setMessages([...messages, { id: "asked", role: "user", content, created_at: null }]);
    try {
      const reply = await post<ChatReply>("chat", { content, ...(id ? { conversation_id: id } : {}) });
      if (shown.current !== id) return;
      shown.current = reply.conversation_id;
      setMessages(reply.messages);
      setError(null);
      adjust({ t: reply.conversation_id });
    } catch (failure) {
      setMessages(messages);
      setError(failure);
      setText(content);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      {messages?.length === 0 ? <p class="faint">The task agent keeps a list of tasks: “Remind me to call Ada tomorrow”, “What is on my list?”</p> : null}
      {messages || error ? null : <p class="faint" role="status">Loading…</p>}
      <ol class="group">
        {(messages ?? []).map((each) => (
          <li key={each.id} class={`entry ${each.role === "user" ? "input" : "message"}`}>
            <div class="head"><span class="who">{each.role === "user" ? "Asked" : "Answer"}</span></div>
            <Markdown text={each.content} />
          </li>
        ))}
      </ol>
      {isBusy ? <p class="faint" role="status">Working…</p> : null}
      {error ? <Failure error={error} /> : null}
      <form class="ask composer" onSubmit={(event) => void send(event)}>
        <label for="task" class="hidden">Your message</label>
        <textarea
          id="task" rows={2} placeholder="Say what there is to do" value={text} onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) void send(event); }}
        />
        <button class="main" disabled={!text.trim() || isBusy || !messages}>Send</button>
      </form>
    </>
  );
}

/** What was said to the task agent before, under what was said first. */
function TaskConversations() {
  const chosen = place.value.query.get("t");
  const list = useList<ListedChat>("chat/conversations");
  useEffect(() => {
    if (chosen && list.value && !list.value.some((each) => each.id === chosen)) list.reload();
  }, [chosen]);
  return (
    <nav class="conversations" aria-label="Conversations">
      {list.error ? <Failure error={list.error} retry={list.reload} /> : null}
      {list.value?.length === 0 ? <p class="faint none">Conversations are kept here.</p> : null}
      <ul>
        {(list.value ?? []).map((each) => (
          <li key={each.id} class={each.id === chosen ? "chosen" : ""}>
            <a href={link("chat", { model: TASKS, t: each.id })} dir="auto" aria-current={each.id === chosen ? "page" : undefined}>{each.title || "New conversation"}</a>
          </li>
        ))}
      </ul>
      <More of={list} />
    </nav>
  );
}

interface SaidProps {
  conversation: string;
  /** What is shown as it happens, and so not here. */
  first: Exchange | null;
  edit: (question: Edited) => void;
  follow: (id: string) => void;
}

/** What was said last in a conversation, and on demand what was said earlier. A call that waits for a person is answered here. */
function Said({ conversation, first, edit, follow }: SaidProps) {
  const items = useList<any>(`conversations/${encodeURIComponent(conversation)}/items`, { order: "desc" });
  first?.live.drawn.value;
  const isReady = items.value !== null && (!first || Boolean(first.live.model.spec || first.live.error.value));
  useEffect(() => {
    // It goes on where it was left.
    if (isReady) window.scrollTo({ top: document.documentElement.scrollHeight });
  }, [conversation, isReady]);
  if (items.error) return <Failure error={items.error} retry={items.reload} />;
  if (items.value === null || !isReady) return <p class="faint" role="status">Loading…</p>;
  const known = [...items.value].reverse();
  const end = first ? known.findIndex((item) => item.id === first.live.model.spec?.input?.[0]?.id) : -1;
  const shown = known.slice(0, end < 0 ? undefined : end);
  const action: EntryAction = { name: "Edit", takes: ["input"], act: (entry) => edit({ itemId: entry.key, text: entry.text }) };
  const asked = (approvals.value ?? []).filter((each) => shown.some((item) => item.type === "mcp_approval_request" && item.id === each.id));
  return (
    <section aria-label="What was said">
      {items.more ? <p><button class="quiet" onClick={items.more}>Show what was said earlier</button></p> : null}
      <ol class="group">
        {readItems(shown).map((entry) => <EntryView key={entry.key} entry={entry} revision={0} isChosen={false} runId={null} action={entry.title === "Asked" ? action : null} />)}
      </ol>
      {asked.map((each) => <ApprovalCard key={each.id} approval={each} answered={(run) => run && follow(run)} />)}
    </section>
  );
}

interface ExchangeProps {
  exchange: Exchange;
  isLast: boolean;
  follow: (id: string) => void;
  edit: ((question: Edited) => void) | null;
}

function ExchangeView({ exchange, isLast, follow, edit }: ExchangeProps) {
  const { live, id } = exchange;
  const drawn = live.drawn.value;
  const { model } = live;
  const told = changes.value;
  useEffect(() => {
    // Somebody has answered elsewhere what this run waits for.
    if (isLast && model.reason === "approval_needed" && told?.parent === id) follow(told.id);
  }, [told]);
  const waiting = model.reason === "approval_needed" ? (approvals.value ?? []).filter((each: Approval) => each.response_id === id) : [];
  useFollowing(`${drawn} ${waiting.length}`, isLast);
  useEffect(() => () => live.stop(), [live]);
  const asked = model.spec?.input?.find((item: any) => item.role === "user");
  const [error, setError] = useState<unknown>(null);
  return (
    <section aria-label="Exchange">
      <ol class="group">
        {model.entries.filter((entry) => entry.kind !== "end" || entry.tone !== "good").map((entry) => (
          <EntryView key={entry.key} entry={entry} revision={entry.revision} isChosen={false} runId={id} />
        ))}
      </ol>
      {model.isOver || model.entries.at(-1)?.kind !== "input" ? null : <p class="faint" role="status">Working…</p>}
      {waiting.map((each) => <ApprovalCard key={each.id} approval={each} answered={(run) => run && follow(run)} />)}
      <div class="actions">
        <a class="button quiet" href={link(`runs/${id}`)}>The run</a>
        {model.isOver ? null : <button class="quiet" onClick={() => void post(`runs/${encodeURIComponent(id)}/cancel`).then(() => setError(null), setError)}>Stop</button>}
        {model.isOver && edit && asked ? <button class="quiet" onClick={() => edit({ itemId: asked.id, text: textOf(asked.content) })}>Edit the question</button> : null}
      </div>
      {live.error.value || error ? <Failure error={live.error.value ?? error} /> : null}
    </section>
  );
}
