// A run begun anew from what another was asked: all of it, or what had been said up to one of its events.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, getAll, type JsonObject, post } from "./api";
import { Failure, Loading, useLoaded } from "./parts";
import { go } from "./router";
import { type Entry, textOf } from "./run_model";

export interface Origin {
  id: string;
  spec: any;
  /** The last thing that is kept; null keeps what was asked, and nothing that was answered. */
  until: Entry | null;
}

/** A request that says the same again, but for what a person changes in it. */
interface Draft {
  fields: JsonObject;
  items: any[];
}

/** Of a response, what makes up the request for it. What is as always is left out: some models refuse to be told. */
function fieldsOf(response: any): JsonObject {
  const fields: JsonObject = { tools: response.tools, tool_choice: response.tool_choice, metadata: { ...response.metadata, branch_of: response.id } };
  const usual: Record<string, unknown> = { temperature: 1, top_p: 1, reasoning: null, max_output_tokens: null, max_tool_calls: null, truncation: "disabled", parallel_tool_calls: true };
  for (const [name, value] of Object.entries(usual)) if (response[name] !== value) fields[name] = response[name];
  if (JSON.stringify(response.text) !== '{"format":{"type":"text"}}') fields.text = response.text;
  return fields;
}

const plain = ({ id: _, status: __, ...message }: any): any => message;
/** Messages are said anew; other items are known by their ids. */
export const renew = (items: any[]): any[] => items.map((item) => (item.role ? plain(item) : item));

/** What was said in a conversation before a run. */
async function readBefore(conversation: string, first: any): Promise<any[]> {
  const items = await getAll<any>(`conversations/${encodeURIComponent(conversation)}/items`, { order: "asc" });
  const at = items.findIndex((item) => item.id === first?.id);
  return at < 0 ? items : items.slice(0, at);
}

/** An item has one id in the log and in a response, but for what stands before its `_`: that is the name of its form. */
const bare = (id: string | undefined): string => (id ?? "").replace(/^[a-z]+_/, "");

function cut(output: any[], until: Entry | null): any[] {
  if (!until || until.kind === "input") return [];
  const itemId = bare(until.key.split("#")[0]);
  const last = output.findLastIndex((item) => bare(item.id) === itemId || (until.call && item.call_id === until.call.id));
  return output.slice(0, last + 1);
}

async function readDraft({ id, spec, until }: Origin): Promise<Draft> {
  const path = `responses/${encodeURIComponent(id)}`;
  const [response, asked] = await Promise.all([get<any>(path), getAll<any>(`${path}/input_items`, { order: "asc" })]);
  const fields = fieldsOf(response);
  const conversation = response.conversation?.id;
  const before = conversation ? await readBefore(conversation, asked[0]) : [];
  if (!conversation && spec.parent) fields.previous_response_id = spec.parent;
  // The first entries of a run are what it was asked, one for each item.
  const kept = until?.kind === "input" ? asked.slice(0, Number(until.key.slice(1)) + 1) : asked;
  return { fields, items: renew([...before, ...kept, ...cut(response.output ?? [], until)]) };
}

export function Again({ origin, close }: { origin: Origin; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const draft = useLoaded(() => readDraft(origin), `${origin.id} ${origin.until?.seq ?? ""}`);
  return (
    <dialog ref={dialog} class="again" onClose={close} aria-labelledby="again-title">
      <h2 id="again-title">{origin.until ? "Branch from this point" : "Run again"}</h2>
      <Loading of={draft}>{(value) => <Form origin={origin} draft={value} close={() => dialog.current?.close()} />}</Loading>
    </dialog>
  );
}

function Form({ origin: { spec, until }, draft, close }: { origin: Origin; draft: Draft; close: () => void }) {
  // The question itself can be changed where it is the last thing said; behind an answer or a call another one may follow.
  const last = draft.items.at(-1);
  const isQuestion = last?.role === "user" && last.content.every?.((part: any) => part.type === "input_text");
  const [model, setModel] = useState<string>(spec.agent ? `agent:${spec.agent}` : spec.model);
  const [instructions, setInstructions] = useState<string>(spec.agent ? "" : (spec.instructions ?? ""));
  const [message, setMessage] = useState(isQuestion ? textOf(last.content) : "");
  const [error, setError] = useState<unknown>(null);
  const needsMessage = isQuestion || last?.role === "assistant";
  const models = useLoaded(() => get<{ data: { id: string }[] }>("models"));
  const start = async (event: Event) => {
    event.preventDefault();
    const kept = isQuestion ? draft.items.slice(0, -1) : draft.items;
    const input = message.trim() ? [...kept, { role: "user", content: message }] : kept;
    try {
      const body = { ...draft.fields, model, input, background: true, ...(instructions.trim() ? { instructions } : {}) };
      const run = await post<{ id: string }>("responses", body);
      close();
      go(`runs/${run.id}`);
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <form class="ask" onSubmit={(event) => void start(event)}>
      {until ? <p class="faint">Keeps {draft.items.length} {draft.items.length === 1 ? "item" : "items"} of what was said up to event {until.seq}{draft.fields.previous_response_id ? ", and the runs before" : ""}.</p> : null}
      <label class="field">
        Model or agent
        <input list="again-models" required value={model} onInput={(event) => setModel(event.currentTarget.value)} />
        <datalist id="again-models">{(models.value?.data ?? []).map((each) => <option value={each.id}>{each.id}</option>)}</datalist>
      </label>
      <label class="field">
        Instructions
        <textarea rows={3} value={instructions} onInput={(event) => setInstructions(event.currentTarget.value)} />
      </label>
      <label class="field">
        {isQuestion ? "Question" : "Message to go on with"}
        <textarea rows={3} required={needsMessage} value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </label>
      {error ? <Failure error={error} /> : null}
      <div class="actions">
        <button class="main">Start</button>
        <button type="button" onClick={close}>Close</button>
      </div>
    </form>
  );
}
