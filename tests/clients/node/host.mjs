// Runs the scripts beside it, one after the other, each as if it had just been started: to load the clients takes a second of a core.
// A line of the input is JSON with a script, its arguments and what to add to the environment. The answer is a line with what it
// printed, and its error if it failed. Each script has modules of its own but for those of its clients, and new connections.
import { createInterface } from "node:readline";

const dispatcher = Symbol.for("undici.globalDispatcher.1");
const write = process.stdout.write.bind(process.stdout);
let number = 0;

for await (const line of createInterface({ input: process.stdin })) {
  const { script, args, env } = JSON.parse(line);
  const told = { said: "", error: null };
  process.argv.splice(2, Infinity, ...args);
  Object.assign(process.env, env);
  process.stdout.write = (text) => {
    told.said += text;
    return true;
  };
  try {
    await import(`./${script}?${++number}`);
  } catch (error) {
    told.error = String(error?.stack ?? error);
  }
  process.stdout.write = write;
  if (globalThis[dispatcher]) {
    const { constructor } = globalThis[dispatcher];
    await globalThis[dispatcher].destroy();
    globalThis[dispatcher] = new constructor();
  }
  write(`${JSON.stringify(told)}\n`);
}
