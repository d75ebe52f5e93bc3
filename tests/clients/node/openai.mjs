// openai for Node, unmodified. Usage: node openai.mjs SCENARIO, with BASE_URL and MODEL in the environment; prints JSON.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ChatCompletionStream } from "openai/lib/ChatCompletionStream";
import { ResponsesToolRunner } from "openai/helpers/responses-tool-runner";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0, timeout: 30_000 });
const model = process.env.MODEL;

const weather = {
  type: "function",
  name: "weather",
  description: "The weather in a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};

const scenarios = {
  async create() {
    const answer = await client.responses.create({ model, input: "Hello", instructions: "Be kind." });
    return { text: answer.output_text, status: answer.status, tokens: answer.usage.total_tokens };
  },

  async stream() {
    const deltas = [];
    const stream = client.responses.stream({ model, input: "Hello" });
    stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
    const final = await stream.finalResponse();
    return { deltas, text: final.output_text, types: final.output.map((item) => item.type) };
  },

  async parse() {
    const City = z.object({ name: z.string(), people: z.number() });
    const answer = await client.responses.parse({ model, input: "Oslo?", text: { format: zodTextFormat(City, "city") } });
    return answer.output_parsed;
  },

  async tools() {
    const first = await client.responses.stream({ model, input: "How is Oslo?", tools: [weather] }).finalResponse();
    const outputs = first.output
      .filter((item) => item.type === "function_call")
      .map((call) => ({
        type: "function_call_output",
        call_id: call.call_id,
        output: `rain in ${JSON.parse(call.arguments).city}`,
      }));
    const second = await client.responses.create({
      model,
      previous_response_id: first.id,
      input: outputs,
      tools: [weather],
    });
    return { calls: outputs.length, text: second.output_text };
  },

  async chat() {
    const messages = [{ role: "user", content: "Hello" }];
    const deltas = [];
    const stream = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    stream.on("content", (delta) => deltas.push(delta));
    const final = await stream.finalChatCompletion();
    const City = z.object({ name: z.string(), people: z.number() });
    const parsed = await client.chat.completions.parse({
      model,
      messages: [{ role: "user", content: "Oslo?" }],
      response_format: zodResponseFormat(City, "city"),
    });
    const execute = ({ city }) => `rain in ${city}`;
    const { name, description, parameters } = weather;
    const runner = client.chat.completions.runTools({
      model,
      messages: [{ role: "user", content: "How is Oslo?" }],
      tools: [{ type: "function", function: { name, description, parameters, function: execute, parse: JSON.parse } }],
    });
    const ran = await runner.finalContent();
    const called = runner.messages.filter((message) => message.role === "tool").length;
    const forwarded = client.chat.completions.stream({ model, messages }).toReadableStream();
    const again = await ChatCompletionStream.fromReadableStream(forwarded).finalChatCompletion();
    return {
      deltas,
      tokens: final.usage.total_tokens,
      parsed: parsed.choices[0].message.parsed,
      ran,
      called,
      forwarded: again.choices[0].message.content,
    };
  },

  async runner() {
    const runner = new ResponsesToolRunner({ functions: [{ tool: weather, execute: ({ city }) => `rain in ${city}` }] });
    const texts = [];
    for (const stream of [false, true]) {
      texts.push((await runner.run(client, { model, input: "How is Oslo?" }, { stream })).output_text);
    }
    return texts;
  },

  async resume() {
    const numbers = [];
    let id, text;
    for await (const event of await client.responses.create({ model, input: "Count", background: true, stream: true })) {
      numbers.push(event.sequence_number);
      if (event.type === "response.created") id = event.response.id;
      if (event.type === "response.output_text.delta") break;
    }
    const rest = await client.responses.retrieve(id, { stream: true, starting_after: numbers.at(-1) });
    for await (const event of rest) {
      numbers.push(event.sequence_number);
      if (event.type === "response.completed") text = event.response.output[0].content[0].text;
    }
    const kept = await client.responses.retrieve(id);
    const items = await client.responses.inputItems.list(id);
    await client.responses.delete(id);
    const gone = await client.responses.retrieve(id).catch((error) => error.status);
    return { numbers, text, status: kept.status, said: items.data[0].content[0].text, gone };
  },

  async files() {
    const bytes = new TextEncoder().encode("The office opens at nine.");
    const file = await client.files.create({ file: new File([bytes], "hours.txt"), purpose: "assistants" });
    const upload = await client.uploads.create({ bytes: 3, filename: "abc.txt", mime_type: "text/plain", purpose: "assistants" });
    const part = await client.uploads.parts.create(upload.id, { data: new File(["abc"], "part") });
    const whole = await client.uploads.complete(upload.id, { part_ids: [part.id] });
    const store = await client.vectorStores.create({ name: "office" });
    const options = { pollIntervalMs: 50 };
    const batch = await client.vectorStores.fileBatches.createAndPoll(store.id, { file_ids: [file.id, whole.file.id] }, options);
    const found = [];
    for await (const result of client.vectorStores.search(store.id, { query: "When does the office open?" })) found.push(result.filename);
    const tools = [{ type: "file_search", vector_store_ids: [store.id] }];
    const include = ["file_search_call.results"];
    const stream = client.responses.stream({ model, input: "When?", tools, include });
    const seen = [];
    for await (const event of stream) if (event.type.includes("file_search")) seen.push(event.type);
    const answer = await stream.finalResponse();
    return {
      content: await (await client.files.content(whole.file.id)).text(),
      counts: batch.file_counts,
      found,
      seen,
      results: answer.output[0].results.map((result) => result.filename),
      text: answer.output_text,
    };
  },

  async error() {
    try {
      await client.responses.create({ model, input: "Hello", temperature: 7 });
    } catch (error) {
      return { name: error.constructor.name, status: error.status, param: error.param, type: error.type };
    }
  },

  async failure() {
    const seen = [];
    try {
      for await (const event of await client.responses.create({ model, input: "Hello", stream: true })) seen.push(event.type);
    } catch (error) {
      return { seen, message: error.message };
    }
  },
};

console.log(JSON.stringify(await scenarios[process.argv[2]]()));
