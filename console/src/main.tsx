import { Component, type ComponentChildren, options, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { effect } from "@preact/signals";
import "./style.css";
import icon from "./icon.svg";
import { isReachable } from "./api";
import { Agents, WorkflowScreen } from "./agents";
import { Approvals } from "./approvals";
import { waitingCount, waitingTold, watchApprovals } from "./approvals_data";
import { Chat } from "./chat";
import { visible } from "./format";
import { Governance } from "./governance";
import { Empty, Failure, screenTitle, useKeys } from "./parts";
import { link, place } from "./router";
import { RunScreen } from "./run";
import { Runs } from "./runs";
import { watchRuns } from "./runs_data";
import { isSignedOut, mayUse, session, Session, SignIn, startSession } from "./session";
import { System } from "./system";
import { Triggers } from "./triggers";
import { Usage } from "./usage";
import { Welcome } from "./welcome";

/** The screens, and the scopes of which a key needs one to see anything there. */
const SCREENS: [path: string, name: string, ...scopes: string[]][] = [
  ["", "Welcome"], ["runs", "Runs", "responses", "traces"], ["approvals", "Approvals", "approvals"], ["chat", "Chat", "conversations"],
  ["agents", "Agents", "agents:invoke", "workflows:run"], ["triggers", "Triggers", "triggers"], ["usage", "Usage", "budgets"], ["governance", "Governance", "admin"],
  ["system", "System", "admin", "responses"],
];

function Screen() {
  const [name = "", id, run] = place.value.path;
  if (isSignedOut.value) return <SignIn />;
  switch (name) {
    case "":
      return <Welcome />;
    case "runs":
      return id ? <RunScreen key={id} id={id} /> : <Runs />;
    case "approvals":
      return <Approvals />;
    case "chat":
      return <Chat />;
    case "agents":
      return <Agents />;
    case "workflows":
      return id && run ? <WorkflowScreen key={run} name={id} id={run} /> : <Agents />;
    case "triggers":
      return <Triggers />;
    case "usage":
      return <Usage />;
    case "governance":
      return <Governance />;
    case "system":
      return <System />;
    default:
      return <div class="page"><Empty><p>There is nothing here.</p><p><a href={link("")}>Welcome</a></p></Empty></div>;
  }
}

function App() {
  const here = place.value.path[0] ?? "";
  const [showsKeys, showKeys] = useState(false);
  const content = useRef<HTMLElement>(null);
  const path = place.value.path.join("/");
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) {
      window.scrollTo({ top: 0 });
      content.current?.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [path]);
  useEffect(() => {
    // On a phone the screens are wider than the view: the one that is open is in it.
    document.querySelector<HTMLElement>(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center", behavior: "instant" });
  }, [here, session.value]);
  useKeys({ "?": () => showKeys(true) });
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); content.current?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href={link("")}><img src={icon} alt="" width="22" height="22" />Mainspring</a>
        {isSignedOut.value ? null : <nav aria-label="Screens">
          {SCREENS.filter(([, , ...scopes]) => mayUse(...scopes)).map(([screen, name]) => (
            <a href={link(screen)} aria-current={here === screen ? "page" : undefined}>
              {name}
              {screen === "approvals" && waitingCount.value ? <span class="count" aria-label={`${waitingTold.value} waiting`}>{waitingTold.value}</span> : null}
            </a>
          ))}
        </nav>}
        <span class="fill" />
        <Session />
        <Theme />
      </header>
      {isReachable.value ? null : <p class="banner" role="alert">The server cannot be reached. What you see may be old; this page tries again by itself.</p>}
      <main id="content" ref={content} tabIndex={-1}><Guarded key={path}><Screen /></Guarded></main>
      {showsKeys ? <Keys close={() => showKeys(false)} /> : null}
    </>
  );
}

/** A screen that cannot be drawn leaves the others usable, and says what went wrong. */
class Guarded extends Component<{ children: ComponentChildren }, { error: unknown }> {
  override state = { error: null };

  override componentDidCatch(error: unknown) {
    this.setState({ error });
  }

  override render({ children }: { children: ComponentChildren }) {
    if (this.state.error === null) return children;
    return <div class="page"><h1>This screen cannot be drawn</h1><Failure error={this.state.error} retry={() => this.setState({ error: null })} /></div>;
  }
}

const THEMES: [string, string][] = [["", "Theme: system"], ["light", "Light"], ["dark", "Dark"], ["contrast", "High contrast"]];

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  return (
    <select class="theme" aria-label="Theme" value={theme} onChange={(event) => setTheme(event.currentTarget.value)}>
      {THEMES.map(([value, name]) => <option value={value}>{name}</option>)}
    </select>
  );
}

const KEYS: [string, string][] = [
  ["?", "these keys"], ["/", "search"], ["j  k", "next, previous"], ["Enter", "open the run, or go to the next event found"], ["←  →", "step through the events of a run"], ["End", "the last event of a run"],
  ["a  d", "approve, deny the focused call"], ["r", "give a reason"], ["Esc", "close, or let go of the chosen event"],
];

function Keys({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="keys-title">
      <h2 id="keys-title">Keys</h2>
      <dl class="keys">{KEYS.map(([key, what]) => <><dt><kbd>{key}</kbd></dt><dd>{what}</dd></>)}</dl>
      <button onClick={() => dialog.current?.close()}>Close</button>
    </dialog>
  );
}

const READ_OUT = ["title", "aria-label", "alt", "placeholder"];
const drawOther = options.vnode;

// Whatever is drawn or read out has nothing hidden in it, wherever it is from: no screen has to remember that.
options.vnode = (node: { type: unknown; props: any }) => {
  if (typeof node.props === "string") node.props = visible(node.props);
  else if (typeof node.type === "string") {
    for (const name of READ_OUT) if (typeof node.props[name] === "string") node.props[name] = visible(node.props[name]);
  }
  drawOther?.(node as never);
};

effect(() => {
  document.title = visible(`${waitingCount.value && !isSignedOut.value ? `(${waitingTold.value}) ` : ""}${screenTitle.value ? `${screenTitle.value} · ` : ""}Mainspring`);
});

// Who has to sign in sees, and asks for, nothing else before.
void startSession().then(() => {
  render(<App />, document.getElementById("app")!);
  if (isSignedOut.value) return;
  watchRuns();
  watchApprovals();
});
