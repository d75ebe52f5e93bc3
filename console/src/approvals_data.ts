// What waits for a person: read at the start, whenever a run begins to wait or goes on, and now and then.
import type { Approval, RunLine } from "./api_types";
import { computed, signal } from "@preact/signals";
import { ApiError, get, type Json, post } from "./api";
import { changes } from "./runs_data";
import { hasTenants } from "./session";

/** `tenant` is nothing for one's own. */
export type OwnedApproval = Approval & { tenant?: string };

export const approvals = signal<OwnedApproval[] | null>(null);
export const approvalsError = signal<unknown>(null);
/** Whether more wait than are listed: what is answered makes room for it. */
export const areMoreWaiting = signal(false);
export const waitingCount = computed(() => approvals.value?.length ?? 0);
export const waitingTold = computed(() => `${waitingCount.value}${areMoreWaiting.value ? "+" : ""}`);

const SECONDS_BETWEEN_LOOKS = 10;
let isReading = false;
let isStarted = false;

async function readOf(tenant: string): Promise<OwnedApproval[]> {
  const page = await get<{ data: Approval[]; has_more: boolean }>("approvals", { state: "pending", limit: 100, order: "asc", tenant });
  if (page.has_more) areMoreWaiting.value = true;
  return page.data.map((each) => ({ ...each, tenant }));
}

/** What waits for anybody: which tenants have such runs is seen in the list of runs. */
async function readAll(): Promise<OwnedApproval[]> {
  const { data } = await get<{ data: RunLine[] }>("runs", { waiting: true, limit: 100 }).catch(() => ({ data: [] }));
  const found = await Promise.all([...new Set(["", ...data.map((run) => run.tenant)])].map(readOf));
  return found.flat().sort((a, b) => a.asked_at - b.asked_at);
}

export async function readApprovals(): Promise<void> {
  if (isReading) return;
  isReading = true;
  areMoreWaiting.value = false;
  try {
    approvals.value = hasTenants() ? await readAll() : await readOf("");
    approvalsError.value = null;
  } catch (error) {
    approvalsError.value = error;
    if (error instanceof ApiError && error.status === 403) approvals.value = [];
  } finally {
    isReading = false;
  }
}

export function watchApprovals(): void {
  if (isStarted) return;
  isStarted = true;
  void readApprovals();
  changes.subscribe((run) => {
    // Most runs ask nobody: what waits changes with a run that begins to wait, and with one that goes on or ends after it did.
    const isKnown = (id: string | null) => id !== null && (approvals.value ?? []).some((each) => each.response_id === id);
    if (run && (run.waiting || isKnown(run.id) || isKnown(run.parent))) void readApprovals();
  });
  // Out of sight as well: the title of the tab says how many wait.
  setInterval(() => void readApprovals(), SECONDS_BETWEEN_LOOKS * 1000);
}

const ofTenant = (tenant: string | undefined): string => (tenant ? `?${new URLSearchParams({ tenant })}` : "");

/** Answers with the digest of what was shown, so that nothing else is approved. Returns the run that goes on, if one does. */
export async function answer(approval: OwnedApproval, approve: boolean, reason: string, content?: Record<string, Json>): Promise<string | null> {
  const body = { approve, digest: approval.digest, ...(reason ? { reason } : {}), ...(content ? { content } : {}) };
  const told = await post<{ id: string; object: string }>(`approvals/${encodeURIComponent(approval.id)}${ofTenant(approval.tenant)}`, body);
  void readApprovals();
  return told.object === "response" ? told.id : null;
}
