// Who one is to the server. Where no key is needed, nothing of this is seen.
import type { SessionState } from "./api_types";
import { useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get, post, remove } from "./api";
import { Failure, useTitle } from "./parts";

export const session = signal<SessionState | null>(null);
export const isSignedOut = signal(false);

window.addEventListener("signed-out", () => (isSignedOut.value = true));

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
  if (!known?.signed_in || !known.needs_key) return null;
  const leave = async () => {
    await remove("session").catch(() => undefined);
    location.reload();
  };
  return <span class="session">{known.tenant || "operator"} <button class="quiet" onClick={leave}>Sign out</button></span>;
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
      setError(failure);
    }
  };
  return (
    <div class="page narrow">
      <h1>Sign in</h1>
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
