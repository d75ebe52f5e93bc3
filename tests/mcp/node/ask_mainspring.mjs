// Asks a Mainspring server as any program on the TypeScript SDK would: node ask_mainspring.mjs URL, or with a command to start.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [where, ...args] = process.argv.slice(2);
const transport = where.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(where))
  : new StdioClientTransport({ command: where, args, env: process.env, cwd: process.env.FOLDER });
const client = new Client({ name: "test", version: "1" }, { capabilities: { elicitation: {} } });
const told = { asked: [], progress: [] };
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  told.asked.push(params.message);
  return { action: "accept", content: { answer: params.requestedSchema.properties.answer.enum[1] } };
});
await client.connect(transport);
told.tools = (await client.listTools()).tools.map((tool) => tool.name);
const onprogress = (progress) => told.progress.push(progress.message);
told.helped = await client.callTool({ name: "agent_helper", arguments: { job: "tidy" } }, undefined, { onprogress });
told.wiped = await client.callTool({ name: "wipe", arguments: { disk: "sda" } });
told.prompt = await client.getPrompt({ name: "helper", arguments: { job: "tidy" } });
await transport.terminateSession?.();
await client.close();
console.log(JSON.stringify(told));
