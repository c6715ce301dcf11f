// A small part of Markdown: paragraphs, headings, lists, code, bold, links to the web. Everything else stays as it was written.
// No pattern looks further than it is bounded to, since an answer is a stranger's text and is read again with every token.

const FENCE = /^ {0,3}`{3}/;
const HEADING = /^#{1,6} +(.+)$/;
const ITEM = /^ {0,8}(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;
const INLINE =
  /`([^`\n]{1,1000})`|\*\*(?=\S)([^*\n]{1,1000})\*\*|\[([^[\]\n]{1,500})\]\((https?:\/\/[^\s()]{1,2000})\)|(https?:\/\/[^\s<>"'`()[\]]{1,2000})/gi;
const shown = new WeakMap();

/** Show a text that may have grown since the last time: blocks that are the same stay the nodes that they are. */
function renderMarkdown(container, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, place) => {
    const source = JSON.stringify(block);
    const there = container.children[place];
    if (there && shown.get(there) === source) return;
    const node = blockNode(block);
    shown.set(node, source);
    if (there) there.replaceWith(node);
    else container.append(node);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}

function blocksOf(text) {
  const blocks = [];
  let open = null; // the block that the next line may belong to
  let gap = false; // whether an empty line came after it
  const begin = (block) => {
    blocks.push(block);
    open = block;
  };
  for (const line of text.split("\n")) {
    if (open?.kind === "code") {
      if (isFence(line) && !languageOf(line)) open = null;
      else open.lines.push(line);
      continue;
    }
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (isFence(line)) begin({ kind: "code", language: languageOf(line), lines: [] });
    else if (!line.trim()) gap = true;
    else if (heading) {
      blocks.push({ kind: "heading", text: heading[1] });
      open = null;
    } else if (item) {
      const ordered = item[1] !== undefined;
      if (open?.kind !== "list" || open.ordered !== ordered) begin({ kind: "list", ordered, start: Number(item[1] ?? 1), items: [] });
      open.items.push(item[2]);
    } else if (open?.kind === "list" && (!gap || line.startsWith("  "))) open.items.push(`${open.items.pop()}\n${line.trim()}`);
    else if (open?.kind === "paragraph" && !gap) open.text += `\n${line}`;
    else begin({ kind: "paragraph", text: line });
    if (line.trim()) gap = false;
  }
  return blocks;
}

function isFence(line) {
  return FENCE.test(line) && !languageOf(line).includes("`");
}

function languageOf(line) {
  const text = line.trimStart();
  let ticks = 0;
  while (text[ticks] === "`") ticks += 1;
  return text.slice(ticks).trim().slice(0, 40);
}

function blockNode(block) {
  if (block.kind === "code") {
    const language = block.language ? { "data-language": block.language } : {};
    return make("pre", language, make("code", {}, block.lines.join("\n")));
  }
  if (block.kind === "list") {
    const items = block.items.map((item) => make("li", {}, ...inlineNodes(item)));
    return block.ordered ? make("ol", { start: block.start }, ...items) : make("ul", {}, ...items);
  }
  return make("p", block.kind === "heading" ? { class: "heading" } : {}, ...inlineNodes(block.text));
}

function inlineNodes(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    const [, code, bold, label, target, address] = match;
    if (code !== undefined) nodes.push(make("code", {}, code));
    else if (bold !== undefined) nodes.push(make("strong", {}, ...inlineNodes(bold)));
    else if (target !== undefined) nodes.push(webLink(label, target));
    else {
      const trimmed = address.replace(/[.,;:!?]{1,20}$/, "");
      nodes.push(webLink(trimmed, trimmed), address.slice(trimmed.length));
    }
  }
  nodes.push(text.slice(end));
  return nodes;
}

function webLink(label, target) {
  return make("a", { href: target, rel: "noopener noreferrer", target: "_blank" }, label);
}
