// Markdown as CommonMark has it, as far as chats need it: text in, a tree of plain objects out.
// More than CommonMark: tables, ~~deleted~~, math, which stays as it is written, and bare addresses.
// Less, on purpose: raw HTML is text, and there are no definitions of links. What may become of a link or
// an image is the matter of render.js.
"use strict";

const MAX_DEPTH = 20; // of containers, and of emphasis in emphasis: further markers are text

// ---- Blocks

// One line while its markers are read from the left; columns count a tab as up to four.
class Line {
  constructor(text, number) {
    this.text = text;
    this.number = number;
    this.at = 0;
    this.column = 0;
    this.isInTab = false; // `at` is at a tab of which some columns are read
    this.look();
  }

  look() {
    let at = this.at, column = this.column;
    for (; this.text[at] === " " || this.text[at] === "\t"; at++) column += this.widthAt(at, column);
    this.indent = column - this.column; // columns of white space ahead
    this.content = this.text.slice(at);
  }

  widthAt(at, column) {
    return this.text[at] === "\t" ? 4 - column % 4 : 1;
  }

  skipSpace(columns) {
    for (let left = Math.min(columns, this.indent); left > 0;) {
      const width = this.widthAt(this.at, this.column), step = Math.min(width, left);
      this.column += step;
      left -= step;
      this.isInTab = step < width;
      if (!this.isInTab) this.at++;
    }
    this.look();
  }

  skipMarker(length) {
    this.skipSpace(this.indent);
    this.at += length;
    this.column += length;
    this.look();
  }

  get rest() {
    if (!this.isInTab) return this.text.slice(this.at);
    return " ".repeat(this.widthAt(this.at, this.column)) + this.text.slice(this.at + 1);
  }
}

const RULE = /^(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const HEADING = /^(#{1,6})(?:[ \t]+|$)/;
const UNDERLINE = /^(?:=+|-+)[ \t]*$/;
const FENCE = /^(?:(`{3,})([^`]*)|(~{3,})(.*))$/;
const FENCE_END = /^(`{3,}|~{3,})[ \t]*$/;
const ITEM = /^(?:([-+*])|(\d{1,9})([.)]))(?=[ \t]|$)/;
const TABLE_RULE = /^(?!-[ \t])[-:|][-:| \t]+$/;
const MATH_BEGIN = /^(?:\$\$|\\\[(?=[\s\\]|$))/; // on a line of its own
const MATH_ENDS = { "$$": "$$", "\\[": "\\]", "\\(": "\\)" };

// Without these characters at its end; a regular expression would take quadratic time.
function cut(text, characters) {
  let end = text.length;
  while (end && characters.includes(text[end - 1])) end--;
  return text.slice(0, end);
}

const trimmed = (text) => cut(text, " \t").replace(/^[ \t]+/, "");

function cellsOf(row) {
  const cells = trimmed(row).split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|"));
  if (cells[0] === "") cells.shift();
  if (cells.at(-1) === "") cells.pop();
  return cells.map(trimmed);
}

// How the columns are aligned, where the line is the rule below a table's head; else null.
function alignsOf(line) {
  if (!TABLE_RULE.test(line)) return null;
  const columns = line.split("|").map(trimmed);
  if (columns[0] === "") columns.shift();
  if (columns.at(-1) === "") columns.pop();
  if (!columns.every((column) => /^:?-+:?$/.test(column))) return null;
  return columns.map((column) => {
    if (column.endsWith(":")) return column.startsWith(":") ? "center" : "right";
    return column.startsWith(":") ? "left" : "";
  });
}

// Blocks have `first` and `last`, the lines on which they begin and end, without blank ones behind them.
class BlockParser {
  constructor() {
    this.root = { type: "root", children: [] };
    this.open = []; // quotes and items, the outermost first
    this.leaf = null; // the block that the next line may belong to
  }

  add(line) {
    let matched = 0;
    while (matched < this.open.length && this.goesOn(this.open[matched], line)) matched++;
    if (matched === this.open.length && this.takesAsItIs(line)) return;
    for (;;) {
      const isWhole = matched === this.open.length; // no container of the lines before has ended here
      const container = matched < MAX_DEPTH && this.containerAt(line, matched, isWhole);
      if (!container) return this.addLeaf(line, matched, isWhole);
      this.open.push(container);
      matched = this.open.length;
    }
  }

  // Whether the line goes on with a container; reads its marker or indentation.
  goesOn(container, line) {
    if (container.type === "item") {
      if (line.content ? line.indent < container.width : !container.children.length) return false;
      line.skipSpace(container.width);
      return true;
    }
    if (line.indent >= 4 || line.content[0] !== ">") return false;
    this.readQuoteMarker(container, line);
    return true;
  }

  readQuoteMarker(quote, line) {
    line.skipMarker(1);
    line.skipSpace(1);
    quote.last = line.number;
  }

  // The lines of code and math.
  takesAsItIs(line) {
    const leaf = this.leaf;
    if (leaf?.fence) {
      leaf.last = line.number;
      const end = line.indent < 4 && FENCE_END.exec(line.content);
      if (end && end[1].startsWith(leaf.fence)) {
        this.leaf = null;
        return true;
      }
      line.skipSpace(leaf.indent);
      leaf.lines.push(line.rest);
      return true;
    }
    if (leaf?.type === "code" && (line.indent >= 4 || !line.content)) {
      if (line.content) leaf.last = line.number;
      line.skipSpace(4);
      leaf.lines.push(line.rest);
      return true;
    }
    if (leaf?.type === "math" && line.content) {
      leaf.last = line.number;
      leaf.lines.push(line.content);
      if (line.content.includes(leaf.end)) this.leaf = null;
      return true;
    }
    return false;
  }

  // The container that begins here, with its marker read; else null.
  containerAt(line, matched, isWhole) {
    if (line.indent >= 4 || !line.content) return null;
    if (line.content[0] === ">") {
      this.close(matched);
      const quote = { type: "quote", children: [] };
      this.append(quote, line);
      this.readQuoteMarker(quote, line);
      return quote;
    }
    const marker = ITEM.exec(line.content);
    if (!marker || RULE.test(line.content)) return null;
    const [{ length }, bullet, number, delimiter] = marker;
    const isEmpty = trimmed(line.content.slice(length)) === "";
    if (isWhole && this.leaf?.type === "paragraph") {
      if (isEmpty || (number && Number(number) !== 1)) return null; // a line of the paragraph
    }
    this.close(matched);
    const item = { type: "item", children: [], first: line.number, last: line.number };
    const indent = line.indent;
    line.skipMarker(length);
    const space = isEmpty || line.indent > 4 ? 1 : line.indent;
    line.skipSpace(space);
    item.width = indent + length + space; // of the columns before its text
    this.listFor(bullet ?? delimiter, number, line).children.push(item);
    return item;
  }

  // The list that an item with such a marker goes on with, or a new one.
  listFor(marker, number, line) {
    const last = (this.open.at(-1) ?? this.root).children.at(-1);
    if (last?.type === "list" && last.marker === marker) return last;
    const list = { type: "list", marker, start: number === undefined ? null : Number(number), children: [] };
    this.append(list, line);
    return list;
  }

  addLeaf(line, matched, isWhole) {
    const { content } = line;
    const paragraph = this.leaf?.type === "paragraph" ? this.leaf : null;
    if (content && line.indent >= 4 && !paragraph) {
      this.close(matched);
      line.skipSpace(4);
      return this.begin({ type: "code", language: "", lines: [line.rest] }, line);
    }
    if (content && line.indent < 4) {
      if (isWhole && paragraph && this.endsParagraph(paragraph, line)) return undefined;
      const block = this.blockAt(line);
      if (block) {
        this.close(matched);
        return this.begin(block, line);
      }
    }
    if (content && paragraph) {
      paragraph.lines.push(content);
      paragraph.canBeHead = isWhole && line.indent < 4;
      for (const block of [paragraph, ...(isWhole ? [] : this.open)]) block.last = line.number;
      return undefined;
    }
    const table = isWhole && this.leaf?.type === "table" ? this.leaf : null;
    this.close(matched);
    if (!content) return undefined;
    if (table) {
      table.rows.push(cellsOf(content).slice(0, table.aligns.length));
      table.last = line.number;
      this.leaf = table;
      return undefined;
    }
    return this.begin({ type: "paragraph", lines: [content], canBeHead: true }, line);
  }

  // A line that makes something else of the paragraph before it.
  endsParagraph(paragraph, line) {
    const { content } = line;
    const aligns = alignsOf(content);
    const head = aligns && paragraph.canBeHead && paragraph.lines.at(-1).includes("|") ? cellsOf(paragraph.lines.at(-1)) : [];
    if (head.length && head.length === aligns.length) {
      paragraph.lines.pop();
      paragraph.last = line.number - 2;
      if (!paragraph.lines.length) (this.open.at(-1) ?? this.root).children.pop();
      this.begin({ type: "table", aligns, rows: [head] }, line);
      this.leaf.first = line.number - 1;
      return true;
    }
    if (!UNDERLINE.test(content)) return false;
    paragraph.type = "heading";
    paragraph.level = content[0] === "=" ? 1 : 2;
    paragraph.last = line.number;
    this.leaf = null;
    return true;
  }

  // Headings, rules, and the first lines of code and of math.
  blockAt(line) {
    const { content } = line;
    const heading = HEADING.exec(content);
    if (heading) {
      const text = trimmed(content.slice(heading[1].length)), unmarked = cut(text, "#");
      return { type: "heading", level: heading[1].length, lines: [/^$|[ \t]$/.test(unmarked) ? unmarked : text] };
    }
    const fence = FENCE.exec(content);
    if (fence) {
      const language = trimmed(fence[2] ?? fence[4]).split(/\s/)[0];
      return { type: "code", language, fence: fence[1] ?? fence[3], indent: line.indent, lines: [] };
    }
    if (RULE.test(content)) return { type: "rule" };
    // Math on lines of its own is kept from reading as a list or a heading. On one line it is a part of a paragraph.
    const begin = MATH_BEGIN.exec(content), end = begin && MATH_ENDS[begin[0]];
    return end && !content.includes(end, 2) ? { type: "math", end, lines: [content] } : null;
  }

  append(block, line) {
    block.first = block.last = line.number;
    (this.open.at(-1) ?? this.root).children.push(block);
  }

  begin(block, line) {
    this.append(block, line);
    const isOneLine = block.type === "rule" || block.type === "heading";
    this.leaf = isOneLine ? null : block;
  }

  // Ends what is inside of the first `count` containers.
  close(count) {
    this.open.length = count;
    this.leaf = null;
  }
}

// Without what only the parser needs. A paragraph's `text` is for parseInline().
function finished(block) {
  const { type } = block;
  if (type === "paragraph") return { type, text: trimmed(block.lines.join("\n")) };
  if (type === "heading") return { type, level: block.level, text: trimmed(block.lines.join("\n")) };
  if (type === "math") return { type, text: block.lines.join("\n") };
  if (type === "table") return { type, aligns: block.aligns, rows: block.rows };
  if (type === "rule") return { type };
  if (type === "code") {
    const lines = block.lines.slice();
    while (!block.fence && /^[ \t]*$/.test(lines.at(-1))) lines.pop();
    return { type, language: block.language, text: lines.join("\n") };
  }
  const children = block.children.map(finished);
  if (type !== "list") return { type, children };
  const hasGap = (blocks) => blocks.some((it, i) => i && it.first > lastLine(blocks[i - 1]) + 1);
  const isLoose = hasGap(block.children) || block.children.some((item) => hasGap(item.children));
  return { type, start: block.start, isLoose, children };
}

function lastLine(block) {
  const inner = block.children?.at(-1);
  return inner ? Math.max(block.last, lastLine(inner)) : block.last;
}

// The blocks of a text. More text behind may make something else of the last line, and of the block before that: the first
// `numSettled` blocks stay as they are, and the text from `at` on has the others.
function parseMarkdown(text) {
  const parser = new BlockParser(), { children } = parser.root, offsets = [];
  const ends = /\r\n|\n|\r|$/g;
  let numSettled = 0;
  for (let at = 0; at < text.length; at = ends.lastIndex) {
    ends.lastIndex = at;
    const end = ends.exec(text);
    numSettled = Math.max(0, children.length - 1);
    parser.add(new Line(text.slice(at, end.index), offsets.length));
    offsets.push(at);
    if (!end[0]) break;
  }
  return { blocks: children.map(finished), numSettled, at: children.length ? offsets[children[numSettled].first] : 0 };
}

// ---- What is inside of a paragraph

const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-zA-Z]{2,6}));/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", times: "×",
                   ndash: "–", mdash: "—", hellip: "…", larr: "←", rarr: "→", le: "≤", ge: "≥", ne: "≠" };
const PLAIN = /[^\\`$*_~[\]!<&\nh]+/y;
const AUTOLINK = /<([a-zA-Z][\w+.-]{1,31}:[^<>\x00-\x20]*)>/y;
const BARE_LINK = /(?<!\w)https?:\/\/[\w!#%&'()+,./:;=?@~-]{1,2000}/y;
const SENTENCE_ENDS = "?!.,:;'_~";
const SPACE = /\s/u, PUNCTUATION = /[\p{P}\p{S}]/u;
// Scripts that set no spaces between words: there a mark beside punctuation is judged as if there were one.
const UNSPACED = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Hang}]/u;
const MAX_MATH = 1000; // characters between single dollars: what is longer are two prices

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function entityText([whole, decimal, hex, name]) {
  if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
  const code = decimal ? Number(decimal) : parseInt(hex, 16);
  const isCharacter = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return String.fromCodePoint(isCharacter ? code : 0xfffd);
}

// Of addresses: with escapes and entities read.
function plainText(text) {
  let plain = "";
  for (let at = 0; at < text.length;) {
    const escaped = matchAt(ESCAPED, text, at), entity = matchAt(ENTITY, text, at);
    plain += escaped ? escaped[1] : entity ? entityText(entity) : text[at];
    at += (escaped ?? entity ?? " ")[0].length;
  }
  return plain;
}

// What stands in parentheses behind a link's text: { href, end }, or null.
function targetAt(text, at) {
  const from = at + matchAt(/[ \t\n]*/y, text, at)[0].length;
  let to = from, href;
  if (text[from] === "<") {
    const pointed = matchAt(/<((?:[^<>\n\\]|\\[^\n])*)>/y, text, from);
    if (!pointed) return null;
    href = pointed[1];
    to += pointed[0].length;
  } else {
    let depth = 0;
    for (; to < text.length && !/[\x00-\x20\x7f]/.test(text[to]); to++) {
      if (text[to] === "\\" && /[!-/:-@[-`{-~]/.test(text[to + 1] ?? "")) to++;
      else if (text[to] === "(" && ++depth > 32) return null; // as others have it, against quadratic time
      else if (text[to] === ")" && --depth < 0) break;
    }
    if (depth > 0) return null;
    href = text.slice(from, to);
  }
  const title = /(?:[ \t\n]+(?:"(?:[^"\\]|\\[^])*"|'(?:[^'\\]|\\[^])*'|\((?:[^()\\]|\\[^])*\)))?[ \t\n]*\)/y;
  const rest = matchAt(title, text, to);
  return rest && { href: plainText(href), end: to + rest[0].length };
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.pending = "";
    this.tokens = []; // strings, nodes, { opens } and { closes: true } of links, and marks of emphasis
    this.marks = [];
    this.brackets = [];
    this.lastRuns = new Map(); // where the last run of backticks of a length begins
    for (const run of text.matchAll(/`+/g)) this.lastRuns.set(run[0].length, run.index);
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      const plain = matchAt(PLAIN, text, this.at);
      if (plain) this.put(plain[0]);
      else if (!this.special(text[this.at])) this.put(text[this.at]);
    }
    this.flush();
    this.pair(0);
    return this.tree();
  }

  put(text, length = text.length) {
    this.pending += text;
    this.at += length;
    return true;
  }

  flush() {
    if (this.pending) this.tokens.push(this.pending);
    this.pending = "";
  }

  push(token, length) {
    this.flush();
    this.tokens.push(token);
    this.at += length;
    return true;
  }

  // Reads what begins here with a character that may mean something; false where it does not.
  special(character) {
    switch (character) {
      case "\\": return this.math("\\(") || this.math("\\[") || this.backslash();
      case "$": return this.math("$$") || this.price();
      case "`": return this.code();
      case "*": case "_": case "~": return this.mark(character);
      case "!": return this.text[this.at + 1] === "[" && this.bracket(true);
      case "[": return this.bracket(false);
      case "]": return this.link();
      case "<": return this.autolink();
      case "&": return this.entity();
      case "\n": return this.lineBreak();
      default: return this.bareLink();
    }
  }

  backslash() {
    if (this.text[this.at + 1] === "\n") {
      this.push({ type: "break" }, 2);
      return this.skipSpaces();
    }
    const escaped = matchAt(ESCAPED, this.text, this.at);
    return escaped && this.put(escaped[1], 2);
  }

  skipSpaces() {
    while (this.text[this.at] === " " || this.text[this.at] === "\t") this.at++;
    return true;
  }

  lineBreak() {
    const isHard = this.pending.endsWith("  ");
    this.pending = cut(this.pending, " ");
    if (isHard) this.push({ type: "break" }, 1);
    else this.put("\n");
    return this.skipSpaces();
  }

  math(begin) {
    const { text, at } = this, end = MATH_ENDS[begin];
    if (!text.startsWith(begin, at) || at >= (this.noMath?.[end] ?? Infinity)) return false;
    const to = text.indexOf(end, at + 2);
    if (to < 0) this.noMath = { ...this.noMath, [end]: at }; // nor is there one further on
    return to > at + 2 && this.push({ type: "math", text: text.slice(at, to + 2) }, to + 2 - at);
  }

  // Math between single dollars touches both, and no digit follows: "from $5 to $10" is none.
  price() {
    const { text, at } = this;
    const found = matchAt(/\$(?![\s$])(?:[^$`\n\\]|\\[^\n])*?(?<!\s)\$(?![\d$])/y, text.slice(at, at + MAX_MATH), 0);
    return found && this.push({ type: "math", text: found[0] }, found[0].length);
  }

  code() {
    const { text, at } = this, { length } = matchAt(/`+/y, text, at)[0];
    if (!(this.lastRuns.get(length) > at)) return this.put("`".repeat(length));
    const runs = /`+/g;
    runs.lastIndex = at + length;
    let run = runs.exec(text);
    while (run[0].length !== length) run = runs.exec(text);
    let code = text.slice(at + length, run.index).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(code)) code = code.slice(1, -1);
    return this.push({ type: "code", text: code }, run.index + length - at);
  }

  entity() {
    const found = matchAt(ENTITY, this.text, this.at);
    return found && this.put(entityText(found), found[0].length);
  }

  autolink() {
    const found = matchAt(AUTOLINK, this.text, this.at);
    return found && this.push({ type: "link", href: found[1], children: [found[1]] }, found[0].length);
  }

  // Without the punctuation of the sentence, and a parenthesis that was opened before it.
  bareLink() {
    const found = matchAt(BARE_LINK, this.text, this.at);
    if (!found) return false;
    let href = cut(found[0], SENTENCE_ENDS);
    while (href.endsWith(")") && href.split(")").length > href.split("(").length) href = cut(href.slice(0, -1), SENTENCE_ENDS);
    if (!/:\/\/./.test(href)) return false;
    return this.push({ type: "link", isBare: true, href, children: [href] }, href.length);
  }

  // A run of marks. Whether it may open or close emphasis is told by what stands on both sides of it.
  mark(character) {
    const { text, at } = this;
    let end = at;
    while (text[end] === character) end++;
    const count = end - at;
    if (character === "~" && count < 2) return false;
    const before = Array.from(text.slice(Math.max(0, at - 2), at)).at(-1) ?? " ";
    const after = end < text.length ? String.fromCodePoint(text.codePointAt(end)) : " ";
    const isSpace = [before, after].map((it) => SPACE.test(it));
    const isPunctuation = [before, after].map((it) => PUNCTUATION.test(it));
    const isLoose = [before, after].map((it, i) => isSpace[i] || isPunctuation[i] || UNSPACED.test(it));
    const isLeft = !isSpace[1] && (!isPunctuation[1] || isLoose[0]);
    const isRight = !isSpace[0] && (!isPunctuation[0] || isLoose[1]);
    const isWord = character === "_";
    const mark = {
      mark: character, count, length: count, opens: [], closes: [], index: this.marks.length,
      canOpen: isLeft && (!isWord || !isRight || isPunctuation[0]),
      canClose: isRight && (!isWord || !isLeft || isPunctuation[1]),
    };
    this.marks.push(mark);
    return this.push(mark, count);
  }

  // Pairs the marks from the given one on, as CommonMark's "process emphasis" does, and forgets them.
  pair(first) {
    const openers = [], bottoms = new Map(); // the mark at or below which there is no opener of a kind
    for (const mark of this.marks.splice(first)) {
      const kind = `${mark.mark}${mark.canOpen}${mark.length % 3}`;
      while (mark.canClose && mark.count) {
        const bottom = bottoms.get(kind) ?? -1;
        let i = openers.length - 1;
        while (i >= 0 && openers[i].index > bottom && !fits(openers[i], mark)) i--;
        if (i < 0 || openers[i].index <= bottom) {
          bottoms.set(kind, openers.at(-1)?.index ?? -1);
          break;
        }
        const opener = openers[i], size = Math.min(2, opener.count, mark.count);
        opener.opens.unshift(mark.mark === "~" ? "del" : size === 2 ? "strong" : "em");
        mark.closes.push(true);
        opener.count -= size;
        mark.count -= size;
        openers.length = opener.count ? i + 1 : i;
        if (mark.mark === "~" && mark.count < 2) break;
      }
      if (mark.canOpen && mark.count) openers.push(mark);
    }
  }

  bracket(isImage) {
    this.flush();
    this.brackets.push({ isImage, isActive: true, token: this.tokens.length, mark: this.marks.length });
    return this.push(isImage ? "![" : "[", isImage ? 2 : 1);
  }

  link() {
    const bracket = this.brackets.pop();
    if (!bracket?.isActive || this.text[this.at + 1] !== "(") return false;
    const target = targetAt(this.text, this.at + 2);
    if (!target) return false;
    this.pair(bracket.mark);
    const node = { type: bracket.isImage ? "image" : "link", href: target.href, children: [] };
    this.push({ closes: [true] }, target.end - this.at);
    this.tokens[bracket.token] = { opens: [node] };
    if (!bracket.isImage) this.brackets.forEach((it) => { it.isActive &&= it.isImage; }); // no link in a link
    return true;
  }

  tree() {
    const root = [], stack = [root];
    const append = (text) => {
      const last = stack.at(-1);
      if (typeof last.at(-1) === "string") last[last.length - 1] += text;
      else last.push(text);
    };
    for (const token of this.tokens) {
      if (typeof token === "string") append(token);
      else if (token.type) stack.at(-1).push(token);
      for (const _ of token.closes ?? []) stack.pop();
      if (token.count) append(token.mark.repeat(token.count));
      for (const opened of token.opens ?? []) {
        const node = typeof opened === "string" ? { type: opened, children: [] } : opened;
        const isTooDeep = stack.length > MAX_DEPTH && typeof opened === "string";
        if (!isTooDeep) stack.at(-1).push(node);
        stack.push(isTooDeep ? stack.at(-1) : node.children);
      }
    }
    return root;
  }
}

function fits(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  if (closer.mark === "~") return opener.count > 1;
  const isEither = (opener.canOpen && opener.canClose) || (closer.canOpen && closer.canClose);
  return !isEither || (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

// A list of strings and of nodes: { type, children } or, of code and math, { type, text }.
function parseInline(text) {
  return new InlineParser(text).parse();
}
