// Anthropic's SDK for TypeScript, unmodified. Usage: node anthropic.mjs, with BASE_URL and MODEL in the environment; prints JSON.
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { betaMemoryTool } from "@anthropic-ai/sdk/helpers/beta/memory";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const baseURL = process.env.BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 30_000 });
const model = process.env.MODEL;

const deltas = [];
const stream = client.messages.stream({ model, max_tokens: 500, messages: [{ role: "user", content: "Hello" }] });
stream.on("text", (delta) => deltas.push(delta));
const final = await stream.finalMessage();

const weather = betaTool({
  name: "weather",
  description: "The weather in a city.",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }) => `rain in ${city}`,
});
const ran = await client.beta.messages.toolRunner({
  model,
  max_tokens: 500,
  messages: [{ role: "user", content: "How is Oslo?" }],
  tools: [weather],
});

const streamed = [];
const runner = client.beta.messages.toolRunner({
  model,
  max_tokens: 500,
  messages: [{ role: "user", content: "How is Oslo?" }],
  tools: [weather],
  stream: true,
});
for await (const turn of runner) {
  for await (const event of turn) if (event.type === "message_start") streamed.push(event.type);
}

const view = async () => "Buy bread.";
const never = async () => {
  throw new Error("nobody asked for this");
};
const memory = betaMemoryTool({ view, create: never, str_replace: never, insert: never, delete: never, rename: never });
const remembered = await client.beta.messages.toolRunner({
  model,
  max_tokens: 500,
  messages: [{ role: "user", content: "What is there to do?" }],
  tools: [memory],
});

const City = z.object({ name: z.string(), people: z.number() });
const parsed = await client.messages.parse({
  model,
  max_tokens: 500,
  messages: [{ role: "user", content: "Oslo?" }],
  output_config: { format: zodOutputFormat(City) },
});

const models = new Set();
for await (const known of client.models.list()) models.add(known.type);

let refused;
try {
  await client.messages.create({ model, max_tokens: 0, messages: [{ role: "user", content: "Hello" }] });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, type: error.error?.error?.type };
}
const counted = await client.messages.countTokens({ model, messages: [{ role: "user", content: "Hello" }] });

console.log(
  JSON.stringify({
    deltas,
    kinds: final.content.map((block) => block.type),
    stop: final.stop_reason,
    ran: ran.content.at(-1).text,
    refused,
    counts: counted.input_tokens > 0,
    streamed,
    remembered: remembered.content.at(-1).text,
    parsed: parsed.parsed_output,
    models: [...models],
  }),
);
