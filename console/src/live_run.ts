// A run that is followed: its log is read, then its events as they happen. Drawing happens once a frame, however many come.
import { signal } from "@preact/signals";
import { ApiError, follow, get } from "./api";
import { type LogEvent, RunModel } from "./run_model";

const PAGE = 10_000;
/** What is seen at once of a long run, while the rest of it is read. */
const FIRST_PAGE = 400;
/** Milliseconds before a log that the server could not give is asked for again. */
const REST = 2_000;
/** Milliseconds between two looks at what is new: people do not read faster, and ten of them cost the server next to nothing. */
const PACE = 200;

export class LiveRun {
  readonly model = new RunModel();
  readonly drawn = signal(0);
  readonly connected = signal(true);
  /** Whether all that has happened so far was read. */
  readonly isRead = signal(false);
  readonly error = signal<unknown>(null);
  private stopping = new AbortController();
  private scheduled = false;
  private last = -1;

  constructor(readonly id: string) {
    void this.read();
  }

  private async read(): Promise<void> {
    const path = `runs/${encodeURIComponent(this.id)}/events`;
    try {
      await this.readLog(path);
      this.error.value = null;
      this.isRead.value = true;
      if (!this.model.isOver) {
        await follow(
          path,
          () => ({ stream: true, pace: PACE, after: this.last < 0 ? undefined : this.last }),
          (event) => {
            if (event.data === "[DONE]") return true;
            this.take(JSON.parse(event.data) as LogEvent);
            return this.model.isOver;
          },
          this.stopping.signal,
          (connected) => (this.connected.value = connected),
        );
      }
    } catch (error) {
      if (this.stopping.signal.aborted) return;
      this.error.value = error;
      // The server may only be away, or busy: what is wrong with the request stays wrong.
      if (error instanceof ApiError && (error.status === 0 || error.status >= 500)) setTimeout(() => this.stopping.signal.aborted || void this.read(), REST);
    }
    this.draw();
  }

  /** What has happened so far, without the pieces of texts that are whole by now. */
  private async readLog(path: string): Promise<void> {
    for (;;) {
      const query = { after: this.last < 0 ? undefined : this.last, limit: this.last < 0 ? FIRST_PAGE : PAGE };
      const page = await get<{ data: LogEvent[]; last_seq: number; has_more: boolean }>(path, query, this.stopping.signal);
      await this.readEarlier(page.data[0]);
      page.data.forEach((event) => this.take(event));
      this.last = Math.max(this.last, page.last_seq ?? -1);
      if (!page.has_more) return;
    }
  }

  /** The calls that a person was asked about are in the log of the run before. */
  private async readEarlier(first: LogEvent | undefined): Promise<void> {
    const parent = first?.spec?.parent;
    if (!parent || !first.spec.input?.some((item: { type?: string }) => item.type === "mcp_approval_response")) return;
    const page = await get<{ data: LogEvent[] }>(`runs/${encodeURIComponent(parent)}/events`, { limit: PAGE }, this.stopping.signal);
    for (const { type, item } of page.data) {
      if (type === "item_done" && item.call_id) this.model.earlier.set(item.call_id, { name: item.name, arguments: item.arguments });
    }
  }

  private take(event: LogEvent): void {
    this.last = Math.max(this.last, event.seq);
    this.model.read(event);
    this.draw();
  }

  private draw(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    const act = () => {
      this.scheduled = false;
      this.drawn.value += 1;
    };
    if (document.hidden) setTimeout(act, 250);
    else requestAnimationFrame(act);
  }

  stop(): void {
    this.stopping.abort();
  }
}
