// The AI SDK, unmodified, with either of its providers for the Responses API, with chat(), or with Anthropic's.
// Usage: node ai.mjs openai|open-responses|chat|anthropic SCENARIO [ARGUMENTS], with BASE_URL and MODEL in the environment; prints JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // what it prints is read as JSON

const [, , provider, scenario, ...rest] = process.argv;
const models = {
  openai: () => createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" }).responses(process.env.MODEL),
  chat: () => createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" }).chat(process.env.MODEL),
  anthropic: () => createAnthropic({ baseURL: process.env.BASE_URL, apiKey: "unused" })(process.env.MODEL),
  "open-responses": () =>
    createOpenResponses({ name: "local", url: `${process.env.BASE_URL}/responses`, apiKey: "unused" })(process.env.MODEL),
};
const model = models[provider]();
const maxRetries = 0;
const tools = {
  weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `rain in ${city}`,
  }),
};

const scenarios = {
  async generate() {
    const { text, finishReason, usage } = await generateText({ model, maxRetries, system: "Be kind.", prompt: "Hello" });
    return { text, finishReason, tokens: usage.totalTokens };
  },

  async tools() {
    const { text, steps } = await generateText({ model, maxRetries, tools, prompt: "How is Oslo?", stopWhen: stepCountIs(3) });
    return { text, steps: steps.map((step) => step.finishReason) };
  },

  async chat() {
    const messages = [];
    for (const content of ["My name is Ada.", "What is my name?"]) {
      messages.push({ role: "user", content });
      messages.push(...(await generateText({ model, maxRetries, messages })).response.messages);
    }
    return messages.at(-1).content.find((part) => part.type === "text").text;
  },

  async stream() {
    const parts = {};
    const result = streamText({ model, maxRetries, tools, prompt: "How is Oslo?", stopWhen: stepCountIs(3) });
    for await (const part of result.fullStream) {
      if (part.type === "error") throw part.error;
      parts[part.type] = (parts[part.type] ?? 0) + 1;
    }
    return { text: await result.text, reasoning: await result.reasoningText, parts };
  },

  async object() {
    const schema = z.object({ name: z.string(), people: z.number() });
    const { output } = await generateText({ model, maxRetries, output: Output.object({ schema }), prompt: "Oslo?" });
    return output;
  },

  async approval() {
    const [said, serverUrl, streamed] = rest;
    const openai = createOpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" });
    const tools = { sums: openai.tools.mcp({ serverLabel: "sums", serverUrl, requireApproval: "always" }) };
    const messages = [{ role: "user", content: "What is 2 and 3?" }];
    const ask = async () => {
      const result = streamed
        ? streamText({ model, maxRetries, tools, messages })
        : await generateText({ model, maxRetries, tools, messages });
      messages.push(...(await result.response).messages);
      return { content: await result.content, text: await result.text };
    };
    const requests = (await ask()).content.filter((part) => part.type === "tool-approval-request");
    const answer = { type: "tool-approval-response", approved: said === "approve", providerExecuted: true };
    messages.push({ role: "tool", content: requests.map(({ approvalId }) => ({ ...answer, approvalId })) });
    const { text } = await ask();
    messages.push({ role: "user", content: "Thanks" });
    return { asked: requests.length, text, thanked: (await ask()).text };
  },

  async failure() {
    try {
      const { text } = await generateText({ model, maxRetries, prompt: "Hello" });
      return { text };
    } catch (error) {
      return { message: error.message };
    }
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
