// What an MCP server asks a person in the middle of a call: a form of flat fields, or a page to open.
import type { Json } from "./api";

export interface Elicitation {
  server: string;
  mode: "form" | "url";
  message: string;
  url?: string;
  requested_schema?: { properties: Record<string, Field>; required: string[] };
}

interface Field {
  type?: string;
  title?: string;
  description?: string;
  format?: string;
  enum?: string[];
  enumNames?: string[];
  oneOf?: Choice[];
  anyOf?: Choice[];
  items?: Field;
  default?: Json;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
}

interface Choice {
  const?: string;
  title?: string;
}

export type Content = Record<string, Json>;

export function startContent(asked: Elicitation | undefined): Content {
  const fields = Object.entries(asked?.requested_schema?.properties ?? {});
  return Object.fromEntries(fields.filter(([, field]) => field.default !== undefined).map(([name, field]) => [name, field.default!]));
}

function choicesOf(field: Field): [value: string, name: string][] | null {
  if (field.enum) return field.enum.map((value, index) => [String(value), field.enumNames?.[index] ?? String(value)]);
  const options = field.oneOf ?? field.anyOf;
  return options ? options.map((option) => [String(option.const), option.title ?? String(option.const)]) : null;
}

export function ElicitationForm({ asked, content, change }: { asked: Elicitation; content: Content; change: (content: Content) => void }) {
  if (asked.mode === "url" && !/^https?:/i.test(asked.url ?? "")) return <p class="bad">This is no address of a web page: {asked.url ?? ""}</p>;
  if (asked.mode === "url") {
    return (
      <p>
        <a class="button" href={asked.url} target="_blank" rel="noopener noreferrer nofollow">Open {hostOf(asked.url ?? "")}</a>
        {" "}<span class="faint">{asked.url ?? ""}</span>
      </p>
    );
  }
  const { properties, required } = asked.requested_schema!;
  return (
    <div class="ask" role="group" aria-label={`Form of ${asked.server}`}>
      <p class="faint">The server <code>{asked.server}</code> gets what you fill in. Give it no passwords and no keys.</p>
      {Object.entries(properties).map(([name, field]) => (
        <FieldInput
          key={name} name={name} field={field} isRequired={required.includes(name)} value={content[name]}
          change={(value) => {
            const { [name]: _, ...others } = content;
            change(value === undefined ? others : { ...others, [name]: value });
          }}
        />
      ))}
    </div>
  );
}

function hostOf(url: string): string {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

interface FieldProps {
  name: string;
  field: Field;
  isRequired: boolean;
  value: Json | undefined;
  change: (value: Json | undefined) => void;
}

function FieldInput({ name, field, isRequired, value, change }: FieldProps) {
  const label = <>{field.title ?? name}{isRequired ? " (required)" : ""} <span class="faint">{field.description ?? ""}</span></>;
  if (field.type === "boolean") {
    return <label class="check"><input type="checkbox" checked={value === true} onChange={(event) => change(event.currentTarget.checked)} /> {label}</label>;
  }
  const many = field.type === "array" ? choicesOf(field.items ?? {}) : null;
  if (many) {
    const chosen = Array.isArray(value) ? value.map(String) : [];
    return (
      <fieldset>
        <legend>{label}</legend>
        {many.map(([option, shown]) => (
          <label class="check">
            <input type="checkbox" checked={chosen.includes(option)} onChange={(event) => change(event.currentTarget.checked ? [...chosen, option] : chosen.filter((each) => each !== option))} /> {shown}
          </label>
        ))}
      </fieldset>
    );
  }
  const one = choicesOf(field);
  if (one) {
    return (
      <label class="field">
        {label}
        <select value={value === undefined ? "" : String(value)} onChange={(event) => change(event.currentTarget.value || undefined)}>
          <option value="">Choose</option>
          {one.map(([option, shown]) => <option value={option}>{shown}</option>)}
        </select>
      </label>
    );
  }
  const isNumber = field.type === "number" || field.type === "integer";
  const kinds: Record<string, string> = { email: "email", uri: "url", date: "date" };
  const read = (text: string): Json | undefined => (text === "" ? undefined : isNumber && Number.isFinite(Number(text)) ? Number(text) : text);
  return (
    <label class="field">
      {label}
      <input
        {...{ type: isNumber ? "number" : (kinds[field.format ?? ""] ?? "text") } as { type: "text" }} step={field.type === "number" ? "any" : undefined} min={field.minimum} max={field.maximum}
        maxLength={field.maxLength} value={value === undefined ? "" : String(value)} onInput={(event) => change(read(event.currentTarget.value))}
      />
    </label>
  );
}
