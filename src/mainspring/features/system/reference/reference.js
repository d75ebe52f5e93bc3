// The API reference over our own OpenAPI document. Text is only ever set as text.
"use strict";

const byId = (id) => document.getElementById(id);

function make(tag, text, parent, fields) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  Object.assign(made, fields || {});
  if (parent) parent.append(made);
  return made;
}

// Text in which code is marked.
function addText(parent, text) {
  text.split(/`([^`]+)`/).forEach((part, at) => (at % 2 ? make("code", part, parent) : parent.append(part)));
}

function headers(isJson) {
  const key = byId("key").value.trim();
  return { ...(key ? { authorization: `Bearer ${key}` } : {}), ...(isJson ? { "content-type": "application/json" } : {}) };
}

// An example of a schema, as deep as it is readable.
function example(schema, all, depth = 0) {
  if (!schema || depth > 5) return null;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  if ("default" in schema) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return example(schema.anyOf.find((each) => each.type !== "null"), all, depth + 1);
  if (schema.type === "array") return [];
  if (schema.type === "object" || schema.properties) {
    const required = (schema.required || []).map((name) => [name, example((schema.properties || {})[name], all, depth + 1)]);
    return Object.fromEntries(required);
  }
  return { string: "", integer: 0, number: 0, boolean: false }[schema.type] ?? null;
}

function showSchema(schema, all, parent, title) {
  if (!schema || !schema.$ref) return;
  const name = schema.$ref.split("/").pop();
  const box = make("details", "", parent);
  make("summary", `${title}: ${name}`, box);
  box.addEventListener("toggle", () => {
    if (box.open && !box.querySelector("pre")) make("pre", JSON.stringify(all[name], null, 2), box, { tabIndex: 0 });
  });
}

function fill(box, method, path, operation, all) {
  addText(make("p", "", box), operation.description);
  const inputs = operation.parameters.map((parameter) => {
    const line = make("label", "", box, { className: "field" });
    make("span", `${parameter.name} (${parameter.in})`, line);
    const hint = parameter.schema.enum ? parameter.schema.enum.join(", ") : parameter.schema.type || "";
    return [parameter, make("input", "", line, { placeholder: hint, required: Boolean(parameter.required) })];
  });
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  let body = null;
  if (content) {
    body = make("textarea", "", box, { value: JSON.stringify(example(content.schema, all), null, 2) });
    body.setAttribute("aria-label", "Body");
    showSchema(content.schema, all, box, "Body");
  }
  showSchema(operation.responses["200"].content["application/json"]?.schema, all, box, "Answer");
  const send = make("button", "Try it", box, { type: "button" });
  const answer = make("pre", "", box, { hidden: true, tabIndex: 0, ariaLabel: "What the server answers" });
  send.addEventListener("click", () => ask(method, path, inputs, body, answer));
}

async function ask(method, path, inputs, body, answer) {
  if (!inputs.every(([, input]) => input.reportValidity())) return;
  const query = new URLSearchParams();
  const extra = {};
  let target = path.slice(1);
  for (const [parameter, input] of inputs) {
    if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (input.value && parameter.in === "query") query.set(parameter.name, input.value);
    else if (input.value) extra[parameter.name] = input.value;
  }
  answer.hidden = false;
  answer.textContent = "…";
  try {
    const url = query.size ? `${target}?${query}` : target;
    const init = { method, headers: { ...headers(body !== null), ...extra }, body: body && body.value };
    const response = await fetch(url, init);
    answer.textContent = `${response.status} ${response.statusText}\n\n`;
    await read(response, answer);
  } catch (error) {
    answer.textContent += String(error);
  }
}

async function read(response, answer) {
  if ((response.headers.get("content-type") || "").startsWith("application/json")) {
    answer.textContent += JSON.stringify(await response.json(), null, 2);
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) answer.append(part.value);
}

function draw(told) {
  byId("about").textContent = `Version ${told.info.version}. Every route, with the scope that it needs.`;
  const main = byId("operations");
  main.replaceChildren();
  const groups = new Map();
  for (const [path, methods] of Object.entries(told.paths)) {
    const group = path.split("/").slice(0, 3).join("/");
    if (!groups.has(group)) groups.set(group, []);
    for (const [method, operation] of Object.entries(methods)) groups.get(group).push([method.toUpperCase(), path, operation]);
  }
  for (const [group, rows] of [...groups].sort()) {
    const section = make("section", "", main);
    make("h2", group, section);
    for (const [method, path, operation] of rows) {
      const box = make("details", "", section, { className: "operation" });
      const line = make("summary", "", box);
      make("b", method, line);
      make("code", path, line);
      addText(line, operation.summary);
      box.dataset.words = `${method} ${path} ${operation.summary} ${operation.description}`.toLowerCase();
      box.addEventListener("toggle", () => {
        if (box.open && box.children.length === 1) fill(box, method, path, operation, told.components.schemas);
      });
    }
  }
  filter();
}

function filter() {
  const wanted = byId("find").value.toLowerCase();
  for (const box of document.querySelectorAll(".operation")) box.hidden = !box.dataset.words.includes(wanted);
  for (const section of document.querySelectorAll("section")) section.hidden = !section.querySelector(".operation:not([hidden])");
}

async function load() {
  const response = await fetch("openapi.json", { headers: headers(false) });
  if (response.ok) draw(await response.json());
  else byId("about").textContent = `The document needs a key with the scope admin (${response.status}): sign in, or send one.`;
}

byId("load").addEventListener("click", load);
byId("find").addEventListener("input", filter);
load();
