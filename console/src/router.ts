// Where one is: the path and the query behind the `#`. Everything that a screen shows can be found again by its address.
import { signal } from "@preact/signals";

export interface Place {
  path: string[];
  query: URLSearchParams;
}

/** A part of an address that somebody has cut or mistyped is taken as it is. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

export const place = signal<Place>(read());

window.addEventListener("hashchange", () => {
  place.value = read();
});

export type Given = Record<string, string | number | undefined | null>;

export function link(path: string, query: Given = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function go(path: string, query: Given = {}): void {
  location.hash = link(path, query);
}

/** Changes the query of this place without a step in the history. */
export function adjust(changes: Given): void {
  const query = Object.fromEntries(place.value.query);
  const target = link(place.value.path.map(encodeURIComponent).join("/"), { ...query, ...changes });
  history.replaceState(null, "", target);
  place.value = read();
}
