// Markdown as CommonMark has it, as far as chats need it: text in, a tree of plain objects out. Here are the blocks; inline.js
// reads what is inside of them.
// More than CommonMark: tables, ~~deleted~~, math, which stays as it is written, and bare addresses.
// Less, on purpose: raw HTML is text, and there are no definitions of links. What may become of a link or of an image is the
// matter of render.js.
"use strict";

const MAX_DEPTH = 20; // of containers, and of emphasis in emphasis: further markers are text

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
    const above = paragraph.lines.at(-1);
    const head = aligns && paragraph.canBeHead && above.includes("|") ? cellsOf(above) : [];
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
