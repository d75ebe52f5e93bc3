// Who one is to the server. Where no key is needed, nothing of this is seen.
import type { SessionState } from "./api_types";
import { useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { ApiError, get, post, remove } from "./api";
import { Failure, useTitle } from "./parts";

export const session = signal<SessionState | null>(null);
export const isSignedOut = signal(false);

/** A session that was there, and is over: its time is up, or its key was revoked. */
const hasEnded = signal(false);

window.addEventListener("signed-out", () => {
  hasEnded.value = Boolean(session.value?.signed_in);
  isSignedOut.value = true;
});

/** Whether there are tenants of which one may see all: where no key is needed, nobody has one. */
export const hasTenants = (): boolean => Boolean(session.value?.needs_key && session.value.is_operator);
/** What stands for the key in examples. */
export const exampleKey = (): string => (session.value?.needs_key ? "YOUR_KEY" : "unused");
export const exampleHeader = (): string => (session.value?.needs_key ? " -H 'authorization: Bearer YOUR_KEY'" : "");

/** Whether one may see what is not for tenants. */
export const isOperator = (): boolean => session.value?.is_operator ?? true;

/** Whether one's key has one of these scopes, or there is none of which one is asked for. */
export function mayUse(...scopes: string[]): boolean {
  const own = session.value?.scopes ?? ["*"];
  return !scopes.length || own.some((each) => each === "*" || scopes.some((scope) => each === scope || each.startsWith(`${scope}:`)));
}

export async function startSession(): Promise<void> {
  try {
    session.value = await get<SessionState>("session");
    isSignedOut.value = session.value.needs_key && !session.value.signed_in;
  } catch (error) {
    // Every screen tells what it cannot read; a page that is being left tells nobody.
    void error;
  }
}

export function Session() {
  const known = session.value;
  if (!known?.signed_in || !known.needs_key || isSignedOut.value) return null;
  const leave = async () => {
    await remove("session").catch(() => undefined);
    location.reload();
  };
  return <span class="session"><span class="name">{known.tenant || "operator"}</span> <button class="quiet" onClick={leave}>Sign out</button></span>;
}

export function SignIn() {
  useTitle("Sign in");
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>(null);
  const enter = async (event: Event) => {
    event.preventDefault();
    try {
      await post("session", { key: key.trim() });
      location.reload();
    } catch (failure) {
      setError(failure instanceof ApiError && failure.status === 401 ? new Error("This key is not known here, or was revoked.") : failure);
    }
  };
  return (
    <div class="page narrow">
      <h1>Sign in</h1>
      {hasEnded.value ? <p role="status">Your session is over: its time is up, or its key was revoked.</p> : null}
      <p>This server asks for an API key. <code>mainspring keys create</code> makes one.</p>
      <form class="ask" onSubmit={enter}>
        <label for="key">API key</label>
        <input id="key" type="password" autocomplete="current-password" value={key} onInput={(event) => setKey(event.currentTarget.value)} required />
        <button class="main">Sign in</button>
      </form>
      {error ? <Failure error={error} /> : null}
    </div>
  );
}
