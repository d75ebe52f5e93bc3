// A form from typed inputs. Lists and objects have an entry for each value, of any kind and as deep as one likes, or are written as JSON.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Json, JsonObject } from "./api";

export interface Input {
  type?: string;
  description?: string;
  required?: boolean;
  default?: Json;
  enum?: Json[];
}

export type Given = Record<string, Json | undefined>;

type Change = (value: Json | undefined) => void;

const isNested = (type: string | undefined): boolean => type === "array" || type === "object";
const emptyOf = (kind: string): Json => (kind === "array" ? [] : kind === "object" ? {} : kind === "number" ? 0 : kind === "boolean" ? false : kind === "null" ? null : "");

function kindOf(value: Json): string {
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
}

/** What a form begins with: lists and objects are changed where they stand, of other inputs the server knows the defaults. */
export function startInputs(inputs: Record<string, Input>): Given {
  const nested = Object.entries(inputs).filter(([, input]) => isNested(input.type) && (input.required || input.default != null));
  return Object.fromEntries(nested.map(([name, input]) => [name, input.default ?? emptyOf(input.type!)]));
}

/** What was given, to be sent. */
export function listGiven(given: Given): JsonObject {
  return Object.fromEntries(Object.entries(given).filter((each): each is [string, Json] => each[1] !== undefined));
}

export function Inputs({ inputs, given, change }: { inputs: Record<string, Input>; given: Given; change: (given: Given) => void }) {
  return (
    <>
      {Object.entries(inputs).map(([name, input]) => (
        <InputField key={name} name={name} input={input} value={given[name]} change={(value) => change({ ...given, [name]: value })} />
      ))}
    </>
  );
}

function InputField({ name, input, value, change }: { name: string; input: Input; value: Json | undefined; change: Change }) {
  const type = input.type ?? "string";
  const label = <span><strong>{name}</strong>{input.required ? " (required)" : ""} <span class="faint">{type}{input.description ? `: ${input.description}` : ""}</span></span>;
  const isNeeded = Boolean(input.required && input.default === undefined);
  const usual = input.default == null ? "" : JSON.stringify(input.default);
  if (input.enum) {
    const options = input.enum;
    const chosen = options.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
    return (
      <label class="field">
        {label}
        <select required={isNeeded} value={chosen < 0 ? "" : String(chosen)} onChange={(event) => change(event.currentTarget.value ? options[Number(event.currentTarget.value)] : undefined)}>
          <option value="">{usual ? `default: ${usual}` : "Choose"}</option>
          {options.map((each, index) => <option value={String(index)}>{typeof each === "string" ? each : JSON.stringify(each)}</option>)}
        </select>
      </label>
    );
  }
  if (type === "boolean") {
    return (
      <label class="field">
        {label}
        <select required={isNeeded} value={value === undefined ? "" : String(value)} onChange={(event) => change(event.currentTarget.value ? event.currentTarget.value === "true" : undefined)}>
          <option value="">{usual ? `default: ${usual}` : "Choose"}</option>
          <option value="true">true</option>
          <option value="false">false</option>
        </select>
      </label>
    );
  }
  if (isNested(type)) return <Nested label={label} name={name} kind={type} value={value ?? emptyOf(type)} change={change} />;
  if (type === "any") {
    return (
      <fieldset class="nested">
        <legend>{label}</legend>
        {value === undefined ? <button type="button" class="quiet" onClick={() => change("")}>Give a value</button> : <AnyValue name={name} value={value} change={change} remove={() => change(undefined)} />}
      </fieldset>
    );
  }
  const isNumber = type === "number" || type === "integer";
  return (
    <label class="field">
      {label}
      {isNumber
        ? <NumberInput isWhole={type === "integer"} required={isNeeded} placeholder={usual} value={value} change={change} />
        : <textarea rows={1} class="grows" required={isNeeded} placeholder={typeof input.default === "string" ? input.default : usual} value={typeof value === "string" ? value : ""} onInput={(event) => change(event.currentTarget.value || undefined)} />}
    </label>
  );
}

interface NumberProps {
  value: Json | undefined;
  change: Change;
  isWhole?: boolean;
  label?: string;
  required?: boolean;
  placeholder?: string;
}

function NumberInput({ value, change, isWhole = false, label, required, placeholder }: NumberProps) {
  return (
    <input
      type="number" step={isWhole ? 1 : "any"} aria-label={label} required={required} placeholder={placeholder} value={typeof value === "number" ? String(value) : ""}
      onInput={(event) => change(event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value))}
    />
  );
}

interface NestedProps {
  label: ComponentChildren;
  name: string;
  kind: string;
  value: Json;
  change: Change;
}

/** A list or an object: its entries, or all of it as JSON. */
function Nested({ label, name, kind, value, change }: NestedProps) {
  const [text, setText] = useState<string | null>(null);
  return (
    <fieldset class="nested">
      <legend>{label}</legend>
      {text === null
        ? <Entries name={name} value={value} change={change}><button type="button" class="link" onClick={() => setText(JSON.stringify(value, null, 2))}>Write it as JSON<span class="hidden"> ({name})</span></button></Entries>
        : (
          <>
            <JsonText name={name} kind={kind} text={text} change={(typed, read) => { setText(typed); if (read !== undefined) change(read); }} />
            <button type="button" class="link" onClick={() => setText(null)}>Back to its entries<span class="hidden"> ({name})</span></button>
          </>
        )}
    </fieldset>
  );
}

function JsonText({ name, kind, text, change }: { name: string; kind: string; text: string; change: (text: string, read: Json | undefined) => void }) {
  const read = (typed: string): Json | undefined => {
    try {
      const value = JSON.parse(typed) as Json;
      return kindOf(value) === kind ? value : undefined;
    } catch {
      return undefined;
    }
  };
  const box = useRef<HTMLTextAreaElement>(null);
  const flaw = read(text) === undefined ? `This is no ${kind} in JSON.` : "";
  // The browser sends no form with a flaw in it.
  useEffect(() => box.current?.setCustomValidity(flaw), [flaw]);
  return (
    <>
      <textarea ref={box} class="grows code" rows={4} aria-label={`${name} as JSON`} aria-invalid={flaw ? "true" : undefined} value={text} onInput={(event) => change(event.currentTarget.value, read(event.currentTarget.value))} />
      <span class="bad" role="status">{flaw}</span>
    </>
  );
}

function Entries({ name, value, change, children }: { name: string; value: Json; change: Change; children?: ComponentChildren }) {
  const isList = Array.isArray(value);
  const entries: [string, Json][] = isList ? value.map((each, index) => [String(index), each]) : Object.entries(value as JsonObject);
  const box = useRef<HTMLDivElement>(null);
  const isAdded = useRef(false);
  const put = (next: [string, Json][]) => change(isList ? next.map(([, each]) => each) : Object.fromEntries(next));
  const replace = (at: number, entry: [string, Json]) => put(entries.map((each, index) => (index === at ? entry : each)));
  const add = () => {
    isAdded.current = true;
    const last = entries.at(-1)?.[1];
    put([...entries, [isList ? "" : freeName(entries), last === undefined ? "" : emptyOf(kindOf(last))]]);
  };
  useLayoutEffect(() => {
    // Whoever adds an entry goes on by filling it in.
    if (isAdded.current) box.current?.querySelector<HTMLElement>(":scope > :last-child > :is(input, textarea)")?.focus();
    isAdded.current = false;
  }, [entries.length]);
  const addButton = useRef<HTMLButtonElement>(null);
  return (
    <>
      <div class="rows" ref={box}>
        {entries.map(([key, each], index) => {
          const told = `${name}, ${isList ? `entry ${index + 1}` : key || `field ${index + 1}`}`;
          return (
            <div class="row" key={index}>
              {isList ? null : <NameInput label={`Name of field ${index + 1} of ${name}`} value={key} taken={entries.map(([other]) => other)} change={(typed) => replace(index, [typed, each])} />}
              <AnyValue name={told} value={each} change={(changed) => replace(index, [key, changed ?? null])} remove={() => { put(entries.filter((_, at) => at !== index)); addButton.current?.focus(); }} />
            </div>
          );
        })}
      </div>
      <div class="row">
        <button ref={addButton} type="button" class="quiet" onClick={add}>{isList ? "Add an entry" : "Add a field"}<span class="hidden"> to {name}</span></button>
        {children}
      </div>
    </>
  );
}

function freeName(entries: [string, Json][]): string {
  const taken = entries.map(([name]) => name);
  for (let number = entries.length + 1; ; number += 1) if (!taken.includes(`field_${number}`)) return `field_${number}`;
}

/** The name of a field. One that another field has is told, and not taken: the two would become one. */
function NameInput({ label, value, taken, change }: { label: string; value: string; taken: string[]; change: (name: string) => void }) {
  const [refused, refuse] = useState<string | null>(null);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => box.current?.setCustomValidity(refused === null ? "" : "Another field has this name."), [refused]);
  const type = (name: string) => {
    const isFree = name === value || !taken.includes(name);
    refuse(isFree ? null : name);
    if (isFree) change(name);
  };
  return <input ref={box} class="fieldname" aria-label={label} aria-invalid={refused === null ? undefined : "true"} value={refused ?? value} onInput={(event) => type(event.currentTarget.value)} />;
}

const KINDS: [kind: string, name: string][] = [["string", "text"], ["number", "number"], ["boolean", "true or false"], ["array", "list"], ["object", "object"], ["null", "null"]];

function AnyValue({ name, value, change, remove }: { name: string; value: Json; change: Change; remove: () => void }) {
  const kind = kindOf(value);
  return (
    <>
      {kind === "string" ? <textarea rows={1} class="grows" aria-label={name} value={value as string} onInput={(event) => change(event.currentTarget.value)} /> : null}
      {kind === "number" ? <NumberInput label={name} required value={value} change={(typed) => typed !== undefined && change(typed)} /> : null}
      {kind === "boolean" ? <select aria-label={name} value={String(value)} onChange={(event) => change(event.currentTarget.value === "true")}><option value="true">true</option><option value="false">false</option></select> : null}
      <select class="kind" aria-label={`Kind of ${name}`} value={kind} onChange={(event) => change(emptyOf(event.currentTarget.value))}>
        {KINDS.map(([each, told]) => <option value={each}>{told}</option>)}
      </select>
      <button type="button" class="link" onClick={remove}>Remove<span class="hidden"> {name}</span></button>
      {isNested(kind) ? <div class="inner" role="group" aria-label={name}><Entries name={name} value={value} change={change} /></div> : null}
    </>
  );
}
