// What the server answers. Written by `python -m scripts.console_types` from its OpenAPI document; do not edit.

export interface Approval {
  id: string;
  response_id: string;
  tool: string;
  server_label: string;
  arguments: string;
  digest: string;
  policy: string;
  question: string;
  asked_at: number;
  expires_at: number | null;
  state: "approved" | "expired" | "pending" | "refused";
  continued_by: string | null;
  elicitation?: Record<string, any>;
  object: string;
}

export interface AuditEntry {
  at: number;
  run: string;
  seq: number;
  what: "approval" | "ended" | "flagged" | "judged" | "run_ended" | "started" | "triggered";
  outcome?: string;
  tenant?: string;
  subject?: string;
  call?: string;
  tool?: string;
  digest?: string;
  arguments?: string;
  policy?: string;
  reason?: string;
  seconds?: number;
}

export interface AuditRecord {
  id: string;
  said: string;
  entry: AuditEntry;
  hash: string;
  chain: string;
  object: string;
}

export interface CallExplanation {
  run: string;
  call: string;
  tool: string;
  digest: string;
  entries: ExplainedEntry[];
  object: string;
}

export interface ChatMessages {
  conversation_id: string;
  messages: ShownMessage[];
}

export interface ChatReply {
  conversation_id: string;
  message: ShownMessage;
  messages: ShownMessage[];
  decision: Record<string, any>;
}

export interface DefinitionSource {
  file: string;
  text: string;
  object: string;
}

export interface ExplainedEntry {
  at: number;
  seq: number;
  said: string;
  entry: AuditEntry;
}

export interface FileObject {
  id: string;
  bytes: number;
  created_at: number;
  filename: string;
  purpose: string;
  expires_at: number | null;
  status: string;
  status_details: string | null;
  object: string;
}

export interface Firing {
  due: number;
  at: number;
  outcome: "failed" | "missed" | "skipped" | "started";
  run_id?: string;
  reason?: string;
  by_hand?: boolean;
}

export interface KeyLimits {
  requests_per_minute?: number | null;
  tokens_per_minute?: number | null;
  requests_at_once?: number | null;
}

export interface ListedChat {
  id: string;
  created_at: number;
  title: string;
  object: string;
}

export interface ListedConversation {
  id: string;
  created_at: number;
  metadata: Record<string, string>;
  title: string;
  object: string;
}

export interface McpTool {
  name: string;
  description: string;
  parameters: Record<string, any>;
}

export interface Model {
  id: string;
  created: number;
  owned_by: string;
  object: string;
}

export interface ModelDetails {
  id: string;
  created: number;
  owned_by: string;
  object: string;
  profiles: ShownProfile[];
}

export interface ProfileFact {
  value: boolean | number | string;
  source: "learned" | "operator" | "shipped";
  evidence: string;
  at: number | null;
  until: number | null;
}

export interface RunDetails {
  id: string;
  status: string;
  reason: string | null;
  model: string;
  agent: string;
  tenant: string;
  created_at: number;
  ended_at: number | null;
  prompt: string;
  tokens: number;
  error: string | null;
  waiting: boolean;
  parent: string | null;
  object: string;
  within: string | null;
  children: RunLine[];
  continued_by: RunLine[];
  conversation: string | null;
  background: boolean;
  usage: Usage;
  turns: number;
  calls: number;
  events: number;
  why: string | null;
  cost: number | null;
}

export interface RunLine {
  id: string;
  status: string;
  reason: string | null;
  model: string;
  agent: string;
  tenant: string;
  created_at: number;
  ended_at: number | null;
  prompt: string;
  tokens: number;
  error: string | null;
  waiting: boolean;
  parent: string | null;
  object: string;
}

export interface SandboxHealth {
  backend: string;
  version: string;
  totals: string;
  isolates: string[];
  languages: Record<string, string>;
  uid: number;
  is_ok: boolean;
  warm?: number;
  leases?: number;
  refused?: string[];
  warnings?: string[];
}

export interface ScheduleDefinition {
  name: string;
  agent?: string;
  workflow?: string;
  inputs?: Record<string, any>;
  cron?: string;
  every?: string;
  timezone?: string;
  missed?: "all" | "once" | "skip";
  overlap?: "allow" | "queue" | "skip";
  description?: string;
}

export interface SessionState {
  needs_key: boolean;
  signed_in: boolean;
  tenant: string;
  scopes: string[];
  is_operator: boolean;
  object: string;
}

export interface SettingInForce {
  name: string;
  value: any;
  source: "command line" | "default" | "environment" | "file";
}

export interface SettingList {
  data: SettingInForce[];
  file: string | null;
  object: string;
}

export interface ShownDelivery {
  id: string;
  type: "approval.requested" | "response.cancelled" | "response.completed" | "response.failed" | "response.incomplete" | "workflow.cancelled" | "workflow.completed" | "workflow.failed";
  data: Record<string, any>;
  state: string;
  attempts: number;
  created_at: number;
  at: number;
  error: string;
  object: string;
}

export interface ShownEndpoint {
  id: string;
  url: string;
  events: ("approval.requested" | "response.cancelled" | "response.completed" | "response.failed" | "response.incomplete" | "workflow.cancelled" | "workflow.completed" | "workflow.failed")[];
  description: string;
  state: string;
  stopped: string;
  created_at: number;
  key: string;
  secret: string | null;
  object: string;
}

export interface ShownKey {
  id: string;
  name: string;
  tenant: string;
  scopes: string[];
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  limits: KeyLimits;
  key: string | null;
  object: string;
}

export interface ShownMessage {
  id: string;
  role: string;
  content: string;
  created_at: string | null;
}

export interface ShownProfile {
  provider: string;
  model: string;
  server: string;
  values: Record<string, boolean | number | string | null>;
  facts: Record<string, ProfileFact>;
}

export interface ShownRun {
  id: string;
  workflow: string;
  status: "cancelled" | "failed" | "partial" | "skipped" | "success" | string;
  inputs: Record<string, any>;
  outputs: Record<string, any>;
  error: string | null;
  dry_run: boolean;
  created_at: number;
  ended_at: number | null;
  last_event: number;
  steps: ShownStep[];
  object: string;
}

export interface ShownSchedule {
  id: string;
  name: string;
  state: string;
  stopped: string;
  definition: ScheduleDefinition;
  created_at: number;
  next_at: number | null;
  next: string | null;
  last_at: number | null;
  last: string | null;
  queued: number[];
  recent: Firing[];
  of_file: boolean;
  key: string;
  object: string;
}

export interface ShownServer {
  label: string;
  state: string;
  error: string | null;
  tools: McpTool[];
  rejected: UnusableTool[];
  server: string;
  protocol: string;
  latency_ms: number | null;
  last_error: string | null;
  object: string;
}

export interface ShownStep {
  id: string;
  action: string;
  status: string;
  attempt: number;
  output: any;
  outputs: Record<string, any>;
  error: string | null;
  run_id: string | null;
  started_at: number | null;
  ended_at: number | null;
  approvals: string[];
}

export interface ShownTool {
  name: string;
  kind: string;
  description: string;
  parameters: Record<string, any> | null;
  effects: ("destructive" | "execute" | "network" | "read" | "write")[];
  operations: Record<string, ("destructive" | "execute" | "network" | "read" | "write")[]>;
  repeatable: boolean;
  seconds: number | null;
  object: string;
}

export interface ShownWebhook {
  id: string;
  definition: WebhookDefinition;
  path: string;
  created_at: number;
  key: string;
  secret: string | null;
  object: string;
}

export interface ShownWorker {
  id: string;
  place: string;
  pid: number;
  is_self: boolean;
  object?: string;
}

export interface ShownWorkflow {
  name: string;
  version: string;
  description: string;
  inputs: Record<string, Record<string, any>>;
  outputs: Record<string, any>;
  execution: Record<string, any>;
  steps: Record<string, any>[];
  after: Record<string, string[]>;
  object: string;
}

export interface Statement {
  id: string;
  state: "active" | "completed" | "draft" | "expired" | "pending_approval" | "rejected" | "suspended";
  lines: StatementLine[];
  runs: string[];
  object: string;
}

export interface StatementLine {
  measure: string;
  used: number;
  held: number;
  left: number | null;
  limit: number | null;
}

export interface SystemState {
  version: string;
  model: string;
  provider: string;
  database: string;
  is_audited: boolean;
  drives: boolean;
  live: number;
  sandbox: SandboxHealth | null;
  object: string;
}

export interface UnusableTool {
  name: string;
  reason: string;
}

export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cached_tokens?: number;
  cache_write_tokens?: number;
  reasoning_tokens?: number;
  is_estimated?: boolean;
}

export interface UsageLine {
  group: string;
  runs: number;
  failed: number;
  seconds: number | null;
  input_tokens: number;
  output_tokens: number;
  cost: number | null;
}

export interface UsageReport {
  by: string;
  data: UsageLine[];
  total: UsageLine;
  object: string;
}

export interface Verification {
  is_whole: boolean;
  records: number;
  flaw: string | null;
  heads: string[];
  object: string;
}

export interface WebhookDefinition {
  name: string;
  agent?: string;
  workflow?: string;
  inputs?: Record<string, any>;
  mapping?: Record<string, string>;
  description?: string;
}

export interface WorkerList {
  data: ShownWorker[];
  live: number;
  unfinished: number;
  claimable: number;
  object: string;
}
