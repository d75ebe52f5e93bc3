"""JavaScript that runs in the page, in an isolated world that the page's scripts cannot access.

`OUTLINE` renders the page as text and numbers the elements that can be used; `seen` holds them until the page changes.
"""

OUTLINE = r"""
(mostChars, mostItems) => {
  const seen = globalThis.seen = [], items = [], out = [];
  let size = 0, nodes = 0, pre = 0, isCut = false;
  const SKIP = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "svg", "MATH", "CANVAS", "OBJECT"]);
  const ROLES = new Set(["button", "link", "checkbox", "radio", "tab", "menuitem", "option", "switch", "textbox", "combobox"]);
  const short = (text, most = 100) => (text || "").replace(/\s+/g, " ").trim().slice(0, most);
  const add = text => { if (size > mostChars) { isCut = true; return; } out.push(text); size += text.length; };
  const line = count => {
    let have = 0;
    for (let i = out.length - 1; i >= 0 && /^\n+$/.test(out[i]); i--) have += out[i].length;
    if (out.length && have < count) add("\n".repeat(count - have));
  };
  const label = el => short(el.getAttribute("aria-label") || el.labels?.[0]?.innerText || el.innerText
    || (el.type === "submit" || el.type === "button" ? el.value : "") || el.placeholder || el.title
    || el.querySelector?.("img[alt]")?.alt || el.name);
  const kindOf = el => {
    const tag = el.tagName, type = (el.type || "").toLowerCase(), role = el.getAttribute("role");
    if (tag === "A" && el.hasAttribute("href")) return "link";
    if (tag === "BUTTON" || tag === "SUMMARY") return "button";
    if (tag === "SELECT") return "choice";
    if (tag === "TEXTAREA" || (el.isContentEditable && !el.parentElement?.isContentEditable)) return "text field";
    if (tag === "INPUT") return type === "hidden" ? null : ["submit", "button", "reset", "image"].includes(type) ? "button"
      : ["checkbox", "radio"].includes(type) ? type : type === "text" || !type ? "text field" : `${type} field`;
    return ROLES.has(role) ? role : el.hasAttribute("onclick") ? "button" : null;
  };
  const valueOf = (el, kind) => kind === "password field" ? (el.value ? "(hidden)" : "")
    : kind === "checkbox" || kind === "radio" ? (el.checked ? "checked" : "")
    : el.tagName === "SELECT" ? short(el.selectedOptions[0]?.text)
    : short(el.value ?? (el.isContentEditable ? el.innerText : ""));
  const item = (el, kind) => {
    if (seen.length >= mostItems) { isCut = true; return null; }
    seen.push(el);
    const found = { number: seen.length, kind, label: label(el), value: "", address: kind === "link" ? String(el.href) : "" };
    if (/field|choice|checkbox|radio/.test(kind)) found.value = valueOf(el, kind);
    if (el.tagName === "SELECT") found.address = [...el.options].slice(0, 20).map(option => short(option.text, 40)).join(", ");
    if (el.disabled) found.kind += ", disabled";
    items.push(found);
    return found;
  };
  const parts = el => el.tagName === "SLOT" ? el.assignedNodes() : (el.shadowRoot || el).childNodes;
  const walk = node => {
    if (++nodes > 100000 || size > mostChars) { isCut = true; return; }
    if (node.nodeType === 3) {
      const text = pre ? node.data : node.data.replace(/\s+/g, " ");
      if (text.trim() || (text && out.length && !/\s$/.test(out[out.length - 1]))) add(text);
      return;
    }
    if (node.nodeType !== 1 || SKIP.has(node.tagName)) return;
    const style = getComputedStyle(node), tag = node.tagName;
    if (style.display === "none" || style.visibility === "hidden") return;
    const kind = kindOf(node), found = kind && item(node, kind);
    if (found && kind !== "link" && /^(BUTTON|INPUT|SELECT|TEXTAREA|SUMMARY)$/.test(tag)) {
      add(` [${found.number}: ${found.kind} "${found.label}"${found.value ? ` = "${found.value}"` : ""}] `);
      return;
    }
    if (tag === "BR") return add("\n");
    if (tag === "IMG") { if (node.alt) add(`[image: ${short(node.alt)}]`); return; }
    if (tag === "IFRAME" || tag === "FRAME") return add(` [frame: ${short(node.src, 200)}] `);
    const isBlock = !/^(inline|contents|table-cell)/.test(style.display), heading = /^H([1-6])$/.exec(tag);
    if (isBlock) line(heading || tag === "P" ? 2 : 1);
    if (heading) add("#".repeat(heading[1]) + " ");
    if (tag === "LI") add("- ");
    if (style.display === "table-cell") add("| ");
    pre += tag === "PRE";
    for (const part of parts(node)) walk(part);
    pre -= tag === "PRE";
    if (found) add(` [${found.number}]`);
    if (style.display === "table-cell") add(" ");
    if (isBlock) line(heading || tag === "P" ? 2 : 1);
  };
  if (document.body) walk(document.body);
  return { title: short(document.title, 300), text: out.join("").trim(), items, is_cut: isCut };
}
"""

CLICK = """
number => {
  const el = globalThis.seen?.[number - 1];
  if (!el?.isConnected) return "gone";
  if (el.disabled) return "disabled";
  if (el.type === "file") return "file";
  el.scrollIntoView?.({ block: "center" });
  el.focus?.();
  if (el.click) el.click(); else el.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  return "done";
}
"""

# On "type", the caller then types into the field, whose old text is selected.
FOCUS = """
(number, text) => {
  const el = globalThis.seen?.[number - 1];
  if (!el?.isConnected) return "gone";
  if (el.disabled || el.readOnly) return "disabled";
  if (el.type === "file") return "file";
  el.scrollIntoView?.({ block: "center" });
  el.focus?.();
  if (el.isContentEditable) { getSelection().selectAllChildren(el); return "type"; }
  if (el.tagName === "SELECT") {
    const option = [...el.options].find(o => o.text.trim() === text.trim() || o.value === text);
    if (!option) return "option";
    el.value = option.value;
  } else if (el.tagName === "TEXTAREA" || /^(text|search|url|tel|email|password|number)$/.test(el.type)) {
    el.select();
    return "type";
  } else if (el.tagName === "INPUT" && !/^(checkbox|radio|submit|button|reset|image)$/.test(el.type)) {
    el.value = text;
  } else {
    return "click";
  }
  el.dispatchEvent(new Event("input", { bubbles: true }));
  el.dispatchEvent(new Event("change", { bubbles: true }));
  return "done";
}
"""
