// Colors and line numbers for <pre class="code" data-language="python|cpp">. The text is in the page already: without
// this script it is plain. Tokens become elements only for the lines that come into view, so that megabytes stay usable.
(() => {
  "use strict";
  const LINES_PER_BLOCK = 400;
  const MAX_COLORED = 8e6; // characters; beyond this lines are numbered but not colored
  const MAX_NUMBERED = 3e5; // lines; beyond this the text is left as it is

  const words = (text) => text.replace(/ /g, "|");
  const PYTHON_WORDS = words("and as assert async await break class continue def del elif else except finally for from " +
    "global if import in is lambda nonlocal not or pass raise return try while with yield match case None True False");
  const CPP_WORDS = words("alignas auto bool break case catch char class const constexpr continue default delete do double " +
    "else enum explicit extern false float for if inline int int8_t int16_t int32_t int64_t long namespace new nullptr " +
    "operator private protected public return short signed sizeof static struct switch template this throw true try " +
    "typedef typename uint8_t uint16_t uint32_t uint64_t union unsigned using virtual void volatile while");
  const NUMBER = "\\b(?:0[xX][\\da-fA-F]+|\\d+(?:\\.\\d*)?(?:[eE][+-]?\\d+)?)[fFuUlLj]*\\b";
  const LINE_STRINGS = "\"(?:\\\\[^]|[^\"\\\\\\n])*\"?|'(?:\\\\[^]|[^'\\\\\\n])*'?";
  const END = "(?![^])"; // of the text; $ is the end of a line here
  const GRAMMARS = {
    python: `(?<comment>#[^\\n]*)|(?<string>[rRbBfFuU]{0,2}(?:"""[^]*?(?:"""|${END})|'''[^]*?(?:'''|${END})|${LINE_STRINGS}))` +
      `|(?<keyword>\\b(?:${PYTHON_WORDS})\\b)|(?<name>(?<=\\b(?:def|class)\\s+)\\w+|^[ \\t]*@[\\w.]+)|(?<number>${NUMBER})`,
    cpp: `(?<comment>//[^\\n]*|/\\*[^]*?(?:\\*/|${END}))|(?<string>${LINE_STRINGS})` +
      `|(?<keyword>\\b(?:${CPP_WORDS})\\b|^[ \\t]*#[ \\t]*\\w+)|(?<number>${NUMBER})`,
  };

  // Generated wrappers hold their kernels as strings: what was handed to a compiler is shown as the code it is.
  function languageInside(text, start) {
    const before = text.slice(Math.max(0, start - 400), start);
    const call = before.lastIndexOf("async_compile.");
    if (call < 0 || /['"]{3}/.test(before.slice(call))) return "";
    return /^async_compile\.(cpp|cuda|metal|halide)/.test(before.slice(call)) ? "cpp" : "python";
  }

  function tokens(text, language, offset = 0, found = []) {
    const pattern = new RegExp(GRAMMARS[language], "gmu");
    for (const match of text.matchAll(pattern)) {
      if (!match[0]) continue;
      const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
      const inner = kind === "string" && language === "python" && match[0].length > 40 && languageInside(text, match.index);
      const quote = inner ? match[0].search(/'''|"""/) : -1;
      if (quote >= 0) {
        const start = match.index + quote + 3;
        tokens(text.slice(start, match.index + match[0].length - 3), inner, offset + start, found);
      } else {
        found.push({ start: offset + match.index, end: offset + match.index + match[0].length, kind });
      }
    }
    return found;
  }

  function firstEndingAfter(found, position) {
    let low = 0, high = found.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (found[middle].end <= position) low = middle + 1; else high = middle;
    }
    return low;
  }

  function colorLine(line, text, start, end, found, next) {
    const parts = [];
    let position = start;
    while (next < found.length && found[next].start < end) {
      const token = found[next];
      const from = Math.max(token.start, start), to = Math.min(token.end, end);
      if (from > position) parts.push(text.slice(position, from));
      const span = document.createElement("span");
      span.className = "tok-" + token.kind;
      span.textContent = text.slice(from, to);
      parts.push(span);
      position = to;
      if (token.end > end) break; // goes on in the next line
      next += 1;
    }
    if (position < end) parts.push(text.slice(position, end));
    line.replaceChildren(...parts, "\n");
    return next;
  }

  function colorBlock(block, text, starts, found) {
    const first = Number(block.dataset.first);
    let next = firstEndingAfter(found, starts[first]);
    [...block.children].forEach((line, index) => {
      const number = first + index;
      next = colorLine(line, text, starts[number], starts[number + 1] - 1, found, next);
    });
  }

  function makeBlock(text, starts, first, last, prefix) {
    const block = document.createElement("span");
    block.className = "block";
    block.dataset.first = first;
    for (let number = first; number < last; number++) {
      const line = document.createElement("span");
      line.className = "line";
      line.id = `${prefix}L${number + 1}`;
      line.dataset.n = number + 1;
      line.textContent = text.slice(starts[number], starts[number + 1] - 1) + "\n";
      block.append(line);
    }
    return block;
  }

  function showCode(pre, prefix = "") {
    const text = pre.textContent;
    const starts = [0];
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
    if (starts[starts.length - 1] < text.length) starts.push(text.length + 1);
    const nLines = starts.length - 1;
    if (nLines < 1 || nLines > MAX_NUMBERED) return;
    pre.classList.add("numbered");
    const blocks = [];
    for (let first = 0; first < nLines; first += LINES_PER_BLOCK) {
      blocks.push(makeBlock(text, starts, first, Math.min(first + LINES_PER_BLOCK, nLines), prefix));
    }
    pre.replaceChildren(...blocks);
    pre.addEventListener("click", (event) => {
      // The number is drawn before the line: a click left of the text is a click on the number.
      const line = event.target.closest(".line");
      if (line && event.clientX - line.getBoundingClientRect().left < 64 && !prefix) location.hash = line.id;
    });
    if (text.length > MAX_COLORED || !GRAMMARS[pre.dataset.language]) return;
    let found = null;
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        watcher.unobserve(entry.target);
        found = found || tokens(text, pre.dataset.language);
        colorBlock(entry.target, text, starts, found);
      }
    }, { rootMargin: "600px" });
    blocks.forEach((block) => watcher.observe(block));
  }

  function goToLine() {
    const line = /^#L\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (line) line.scrollIntoView({ block: "center" });
  }

  globalThis.showCode = showCode;
  document.querySelectorAll("pre.code").forEach((pre) => showCode(pre));
  goToLine();
  addEventListener("hashchange", goToLine);
})();
