// A safe subset of Markdown, built as nodes: no HTML of a model or a tool is ever interpreted, and no image is fetched.
import type { ComponentChild } from "preact";
import { visible } from "./format";
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
  return (
    <a href={target} target="_blank" rel="noopener noreferrer nofollow" title={target}>
      {label}
    </a>
  );
}

const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^\s*\|?[\s:|-]*-[\s:|-]*\|?\s*$/;

/** One line of it. */
export const Inline = ({ text }: { text: string }) => <>{inline(visible(text))}</>;

export function Markdown({ text }: { text: string }) {
  return <div class="markdown">{blocks(visible(text).split("\n"))}</div>;
}

function blocks(lines: string[]): ComponentChild[] {
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
      made.push(<blockquote>{blocks(takeWhile((each) => /^\s*>/.test(each)).map((each) => each.replace(/^\s*> ?/, "")))}</blockquote>);
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      at += 1;
      made.push(<hr />);
    } else if (line.includes("|") && RULE.test(lines[at + 1] ?? "")) {
      made.push(table(takeWhile((each) => each.includes("|"))));
    } else if (ITEM.test(line)) {
      made.push(list(takeWhile((each) => ITEM.test(each) || /^\s{2,}\S/.test(each))));
    } else {
      const paragraph = takeWhile((each) => each.trim() !== "" && !/^(\s*(```|~~~|>)|#{1,6}\s)/.test(each) && !ITEM.test(each));
      if (!paragraph.length) paragraph.push(lines[at++]!);
      made.push(<p>{paragraph.flatMap((each, index) => (index ? [<br />, ...inline(each)] : inline(each)))}</p>);
    }
  }
  return made;
}

function list(lines: string[]): ComponentChild {
  const first = ITEM.exec(lines[0]!)!;
  const depth = first[1]!.length;
  const items: { text: string; inner: string[] }[] = [];
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1]!.length <= depth) items.push({ text: match[3]!, inner: [] });
    else items.at(-1)!.inner.push(line.slice(Math.min(depth + 2, line.length - line.trimStart().length)));
  }
  const shown = items.map((item) => (
    <li>
      {inline(item.text)}
      {item.inner.length ? blocks(item.inner) : null}
    </li>
  ));
  return first[2] === undefined ? <ul>{shown}</ul> : <ol start={Number(first[2])}>{shown}</ol>;
}

function table(lines: string[]): ComponentChild {
  const cells = (line: string): string[] => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const [head, , ...rows] = lines;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead><tr>{cells(head!).map((cell) => <th scope="col">{inline(cell)}</th>)}</tr></thead>
        <tbody>{rows.map((row) => <tr>{cells(row).map((cell) => <td>{inline(cell)}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}
