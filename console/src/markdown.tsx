// A safe subset of Markdown, built as nodes: no HTML of a model or a tool is ever interpreted, and no image is fetched.
import type { ComponentChild } from "preact";
import { useState } from "preact/hooks";
import { number, visible } from "./format";
import { Copy } from "./parts";

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+(?:\*[^*\n]+)*)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])|(?<!\w)_([^_\s][^_\n]*)_(?!\w)|!?\[([^\]\n]*)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>"'`)\]]+)/g;

function inline(text: string): ComponentChild[] {
  const nodes: ComponentChild[] = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, bold, stars, lines, label, target, bare] = match;
    nodes.push(text.slice(from, match.index));
    from = match.index + whole.length;
    if (code !== undefined) nodes.push(<code>{code.trim()}</code>);
    else if (bold !== undefined) nodes.push(<strong>{inline(bold)}</strong>);
    else if (stars !== undefined || lines !== undefined) nodes.push(<em>{inline((stars ?? lines)!)}</em>);
    else if (bare !== undefined) nodes.push(anchor(bare, bare));
    else nodes.push(whole.startsWith("!") ? `[image: ${label || target}]` : anchor(target!, label || target!));
  }
  nodes.push(text.slice(from));
  return nodes;
}

function anchor(target: string, label: string): ComponentChild {
  if (!/^(https?:|mailto:)/i.test(target)) return `${label} (${target})`;
  const shown = <a href={target} target="_blank" rel="noopener noreferrer nofollow" title={target}>{label}</a>;
  // A name that looks like an address may be that of another place.
  return label !== target && /[\w-]\.[\w-]{2,}/.test(label) && !target.includes(label.trim()) ? <>{shown} ({target})</> : shown;
}

const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
/** The line below the head of a table. */
const isRule = (line: string): boolean => line.includes("-") && /^[\s:|-]+$/.test(line);
/** Quotes and lists within each other, as people read them: what is nested deeper is shown as it was written. */
const DEEPEST = 8;
/** Characters that are drawn at once: a text may be of any length. */
const LONGEST = 50_000;
const MOST_ROWS = 100;

/** One line of it. */
export const Inline = ({ text }: { text: string }) => <>{inline(visible(text))}</>;

export function Markdown({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = text.length > LONGEST && !isWhole;
  return (
    <div class="markdown">
      {blocks(visible(isCut ? text.slice(0, LONGEST) : text).split("\n"), 0)}
      {isCut ? <button class="quiet" onClick={() => setWhole(true)}>Show all {number(text.length)} characters</button> : null}
    </div>
  );
}

function blocks(lines: string[], depth: number): ComponentChild[] {
  if (depth > DEEPEST) return [<pre tabIndex={0}>{lines.join("\n")}</pre>];
  const made: ComponentChild[] = [];
  let at = 0;
  const takeWhile = (holds: (line: string) => boolean): string[] => {
    const start = at;
    while (at < lines.length && holds(lines[at]!)) at += 1;
    return lines.slice(start, at);
  };
  while (at < lines.length) {
    const line = lines[at]!;
    const fence = /^\s*(```+|~~~+)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      at += 1;
      const code = takeWhile((each) => !each.trim().startsWith(fence[1]!));
      at += 1;
      made.push(<div class="fenced"><pre tabIndex={0}><code>{code.join("\n")}</code></pre><Copy text={code.join("\n")} /></div>);
    } else if (heading) {
      at += 1;
      made.push(<p class={`heading h${heading[1]!.length}`}>{inline(heading[2]!)}</p>);
    } else if (/^\s*>/.test(line)) {
      made.push(<blockquote>{blocks(takeWhile((each) => /^\s*>/.test(each)).map((each) => each.replace(/^\s*> ?/, "")), depth + 1)}</blockquote>);
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      at += 1;
      made.push(<hr />);
    } else if (line.includes("|") && isRule(lines[at + 1] ?? "")) {
      made.push(<Table lines={takeWhile((each) => each.includes("|"))} />);
    } else if (ITEM.test(line)) {
      made.push(list(takeWhile((each) => ITEM.test(each) || /^\s{2,}\S/.test(each)), depth));
    } else {
      const paragraph = takeWhile((each) => each.trim() !== "" && !/^(\s*(```|~~~|>)|#{1,6}\s)/.test(each) && !ITEM.test(each));
      if (!paragraph.length) paragraph.push(lines[at++]!);
      made.push(<p>{paragraph.flatMap((each, index) => (index ? [<br />, ...inline(each)] : inline(each)))}</p>);
    }
  }
  return made;
}

function list(lines: string[], depth: number): ComponentChild {
  const first = ITEM.exec(lines[0]!)!;
  const indent = first[1]!.length;
  const items: { text: string; inner: string[] }[] = [];
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1]!.length <= indent) items.push({ text: match[3]!, inner: [] });
    else items.at(-1)!.inner.push(line.slice(Math.min(indent + 2, line.length - line.trimStart().length)));
  }
  const shown = items.map((item) => (
    <li>
      {inline(item.text)}
      {item.inner.length ? blocks(item.inner, depth + 1) : null}
    </li>
  ));
  return first[2] === undefined ? <ul>{shown}</ul> : <ol start={Number(first[2])}>{shown}</ol>;
}

function Table({ lines }: { lines: string[] }) {
  const [most, setMost] = useState(MOST_ROWS);
  const cells = (line: string): string[] => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const [head, rule, ...rows] = lines;
  const sides = cells(rule!).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "centre" : "right") : undefined));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead><tr>{cells(head!).map((cell, at) => <th scope="col" class={sides[at]}>{inline(cell)}</th>)}</tr></thead>
        <tbody>{rows.slice(0, most).map((row) => <tr>{cells(row).map((cell, at) => <td class={sides[at]}>{inline(cell)}</td>)}</tr>)}</tbody>
      </table>
      {rows.length > most ? <button class="quiet" onClick={() => setMost(most * 10)}>{number(rows.length - most)} more</button> : null}
    </div>
  );
}
