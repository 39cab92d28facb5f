// Markdown's other half: what is inside of a paragraph, a heading or a cell. Text in, a list of strings and nodes out.
"use strict";

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
    while (href.endsWith(")") && href.split(")").length > href.split("(").length) {
      href = cut(href.slice(0, -1), SENTENCE_ENDS);
    }
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
