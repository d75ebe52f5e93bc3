// @openai/agents, unmodified: a hosted MCP server whose calls a person is asked about.
// Usage: node agents.mjs callback|state approve|refuse SERVER_URL [unstored] [streamed], with BASE_URL and MODEL in the
// environment; prints JSON.
import { Agent, hostedMcpTool, OpenAIResponsesModel, Runner, RunState } from "@openai/agents";
import OpenAI from "openai";

const [, , scenario, said, serverUrl, ...flags] = process.argv;
const approve = said === "approve";
const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });
const onApproval = scenario === "callback" ? async () => ({ approve }) : undefined;
const agent = new Agent({
  name: "Adder",
  model: new OpenAIResponsesModel(client, process.env.MODEL),
  modelSettings: flags.includes("unstored") ? { store: false } : {},
  tools: [hostedMcpTool({ serverLabel: "sums", serverUrl, requireApproval: "always", onApproval })],
});
const runner = new Runner({ tracingDisabled: true });

async function run(input) {
  if (!flags.includes("streamed")) return runner.run(agent, input);
  const result = await runner.run(agent, input, { stream: true });
  for await (const _ of result);
  await result.completed;
  return result;
}

let result = await run("What is 2 and 3?");
const asked = result.interruptions?.length ?? 0;
if (scenario === "state") {
  const state = await RunState.fromString(agent, JSON.stringify(result.state));
  for (const interruption of state.getInterruptions()) {
    if (approve) state.approve(interruption);
    else state.reject(interruption);
  }
  result = await run(state);
}
const thanked = await run([...result.history, { role: "user", content: "Thanks" }]);
console.log(JSON.stringify({ asked, text: result.finalOutput, thanked: thanked.finalOutput }));
