"use strict";
// Each section has panes of lines and a data block with the lines that belong together.
for (const section of document.querySelectorAll("section[data-mappings]")) {
  const data = document.getElementById(section.dataset.mappings);
  const mappings = data ? JSON.parse(data.textContent) : {};
  const panes = {};
  for (const pane of section.querySelectorAll("[data-pane]")) {
    panes[pane.dataset.pane] = Array.from(pane.querySelectorAll(".line"));
  }
  const related = (key, lines) => {
    const table = mappings[key] || {};
    return [...new Set(lines.flatMap((line) => table[line] || []))];
  };

  // Everything goes through the graph after the gradients: it alone is mapped to both others.
  const partners = (pane, line) => {
    const post =
      pane === "post" ? [line]
      : pane === "pre" ? related("preToPost", [line])
      : related(pane === "cpp" ? "cppCodeToPost" : "pyCodeToPost", [line]);
    const found = {
      pre: related("postToPre", post),
      post: post,
      python: related("postToPyCode", post),
      cpp: related("postToCppCode", post),
    };
    found[pane] = [line];
    return found;
  };

  let kept = null;
  const clear = () => {
    for (const line of section.querySelectorAll(".lit, .chosen")) line.classList.remove("lit", "chosen");
  };
  const show = (element, scroll) => {
    clear();
    const own = element.closest("[data-pane]").dataset.pane;
    for (const [pane, numbers] of Object.entries(partners(own, Number(element.dataset.n)))) {
      const lines = numbers.map((number) => (panes[pane] || [])[number - 1]).filter(Boolean);
      for (const line of lines) line.classList.add(pane === own ? "chosen" : "lit");
      if (scroll && pane !== own && lines.length) reveal(lines);
    }
  };
  const reveal = (lines) => {
    const first = lines.reduce((a, b) => (Number(a.dataset.n) < Number(b.dataset.n) ? a : b));
    const box = first.parentElement;
    box.scrollTop = first.offsetTop - box.clientHeight / 3;
  };
  const lineOf = (event) => event.target.closest(".line[tabindex]");
  const keep = (element) => {
    kept = element;
    show(element, true);
  };
  const release = () => {
    kept = null;
    clear();
  };

  section.addEventListener("mouseover", (event) => {
    const line = lineOf(event);
    if (line && !kept) show(line, false);
  });
  section.addEventListener("mouseleave", () => { if (!kept) clear(); });
  section.addEventListener("focusin", (event) => {
    const line = lineOf(event);
    if (line && !kept) show(line, false);
  });
  section.addEventListener("click", (event) => {
    const line = lineOf(event);
    if (line && line !== kept) keep(line);
    else release();
  });
  section.addEventListener("keydown", (event) => {
    const line = lineOf(event);
    if (line && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      keep(line);
    } else if (event.key === "Escape") {
      release();
    }
  });
}
