// Search, sort, deep links, and content that is added on demand. Without this script the page shows its beginning
// and all findings. Rows that wait in the block of data are HTML that was escaped when the page was made.
(() => {
  "use strict";
  const later = JSON.parse(document.getElementById("later")?.textContent || '{"lists":{},"folds":[]}');
  const search = document.getElementById("search");
  const lists = [];
  let query = []; // the words that are searched for

  function parsed(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  // Without making elements of it: the page's own HTML has no < or > but those of tags.
  const ENTITIES = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#x27;": "'" };
  const plain = (html) => html.replace(/<[^>]*>/g, " ").replace(/&(?:lt|gt|amp|quot|#x27);/g, (entity) => ENTITIES[entity]).toLowerCase();

  // The HTML itself and all that waits to be put into it.
  function whole(html) {
    const folds = [...html.matchAll(/ data-fold="(\d+)"/g)].map((match) => later.folds[Number(match[1])]);
    const items = [...html.matchAll(/ data-list="([^"]*)"/g)].flatMap((match) => later.lists[match[1]] || []);
    return [html, ...[...folds, ...items].map(whole)].join(" ");
  }

  // An item is in the page, or waits as HTML; its element and its text are made when first needed.
  class Item {
    constructor(source) {
      this.made = typeof source === "string" ? null : source;
      this.html = typeof source === "string" ? source : source.outerHTML;
    }
    get element() {
      if (!this.made) {
        this.made = parsed(this.html).firstElementChild;
        prepare(this.made);
      }
      return this.made;
    }
    get id() {
      return this.made ? this.made.id : this.html.match(/^<\w+[^>]* id="([^"]*)"/)?.[1] || "";
    }
    get text() {
      return (this.lower ??= plain(whole(this.html)));
    }
    key(column) {
      const cell = this.element.cells[column];
      if (!cell) return "";
      return cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v);
    }
  }

  class List {
    constructor(element) {
      this.element = element;
      this.items = [...element.children, ...(later.lists[element.dataset.list] || [])].map((each) => new Item(each));
      this.step = Number(element.dataset.shown) || 200;
      this.limit = this.step;
      this.matching = this.items;
      element.dataset.ready = "";
      this.more = document.createElement("p");
      this.more.className = "more";
      this.more.hidden = true;
      (element.closest(".wide") || element).after(this.more);
      this.filter();
    }
    get isInner() {
      return Boolean(this.element.parentElement?.closest("[data-list]"));
    }
    filter() {
      this.matching = this.items.filter((item) => query.every((word) => item.text.includes(word)));
      // What a call that has the words led to is shown with it.
      if (!this.matching.length && this.isInner) this.matching = this.items;
      this.limit = this.step;
      this.draw();
    }
    sort(column, isDescending) {
      const sign = isDescending ? -1 : 1;
      const keys = new Map(this.items.map((item) => [item, item.key(column)]));
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(b, "en", { numeric: true }));
      this.items.sort((a, b) => sign * compare(keys.get(a), keys.get(b)));
      const matching = new Set(this.matching);
      this.matching = this.items.filter((item) => matching.has(item));
      this.draw();
    }
    // Makes the item visible, whatever is being searched for.
    show(id) {
      const found = this.items.find((item) => item.id === id);
      if (!found) return null;
      if (!this.matching.includes(found)) {
        search.value = "";
        searchAll();
      }
      const position = this.matching.indexOf(found);
      if (position >= this.limit) {
        this.limit = position + 1;
        this.draw();
      }
      return found.element;
    }
    draw() {
      const shown = this.matching.slice(0, this.limit).map((item) => item.element);
      if (shown.length !== this.element.children.length || shown.some((each, index) => this.element.children[index] !== each)) {
        this.element.replaceChildren(...shown);
      }
      const rest = this.matching.length - shown.length;
      this.more.hidden = rest <= 0;
      if (rest <= 0) return;
      const button = document.createElement("button");
      button.textContent = `Show ${Math.min(rest, this.step).toLocaleString("en")} more of ${rest.toLocaleString("en")}`;
      button.addEventListener("click", () => {
        this.limit += this.step;
        this.draw();
      });
      this.more.replaceChildren(button);
    }
  }

  function sortable(table, list) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        // Numbers are asked for from the largest, names from A.
        const first = head.classList.contains("num") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") === first ? other : first;
        heads.forEach((each) => each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", order);
        list.sort(column, order === "descending");
      });
    });
  }

  function prepare(root) {
    for (const element of root.querySelectorAll("[data-list]:not([data-ready])")) {
      const list = new List(element);
      lists.push(list);
      if (element.tagName === "TBODY") sortable(element.closest("table"), list);
    }
  }

  function fill(details) {
    const number = details.dataset.fold;
    if (number === undefined) return;
    delete details.dataset.fold;
    details.append(parsed(later.folds[Number(number)]));
    prepare(details);
  }

  function searchAll() {
    query = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => query.every((word) => text.includes(word));
    let anywhere = false;
    for (const list of lists) list.filter();
    for (const section of document.querySelectorAll("main > section")) {
      const own = lists.filter((list) => section.contains(list.element) && !list.isInner);
      let n = own.reduce((sum, list) => sum + list.matching.length, 0);
      const total = own.reduce((sum, list) => sum + list.items.length, 0);
      for (const details of section.querySelectorAll("details[data-fold]")) {
        const isInItem = own.some((list) => list.element.contains(details));
        if (!isInItem && has(plain(later.folds[Number(details.dataset.fold)]))) n += 1;
      }
      const find = views.get(section.id)?.find;
      if (find) n += find(query);
      else if (!own.length && has(section.textContent.toLowerCase())) n += 1;
      section.hidden = query.length > 0 && n === 0;
      const counts = [n, total].map((number) => number.toLocaleString("en"));
      section.querySelector(".hits").textContent = query.length && total ? counts.join(" of ") : "";
      anywhere ||= !section.hidden;
    }
    document.getElementById("nothing").hidden = anywhere;
  }

  // What lies in the page as data, unpacked: {meta, arrays}. A server sends it on demand.
  const blocks = new Map();
  async function read(name) {
    const element = document.querySelector(`script[data-block="${CSS.escape(name)}"]`);
    const from = element.dataset.from;
    const packed = from ? await asked(from) : fromBase64(element.textContent);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const end = bytes.indexOf(10) + 1;
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
    const arrays = {};
    for (const { name: own, type, start, n } of head.arrays) arrays[own] = new TYPES[type](bytes.buffer, end + start, n);
    return { meta: head.meta, arrays };
  }
  const TYPES = {
    uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array,
    float32: Float32Array, float64: Float64Array, int64: BigInt64Array,
  };
  const fromBase64 = (text) => Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  async function asked(from) {
    const answer = await fetch(from);
    if (!answer.ok) throw new Error(`${from}: ${answer.status} ${answer.statusText}`);
    return answer.arrayBuffer();
  }

  // A view's script starts when its section comes near. It may handle the part of a link after the ?, and search.
  const views = new Map(); // by the section's id: {start, started, go, find}
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) begin(entry.target.id);
  }, { rootMargin: "400px" });
  function begin(id) {
    const view = views.get(id);
    if (view && !view.started) {
      const section = document.getElementById(id);
      near.unobserve(section);
      view.started = Promise.resolve(view.start(section)).catch((error) => {
        const note = document.createElement("p");
        note.className = "fail";
        note.textContent = `This view could not be drawn: ${error.message}`;
        section.append(note);
        console.error(error);
      });
    }
    return view?.started;
  }
  addEventListener("beforeprint", () => [...views.keys()].forEach(begin));
  window.rankscope = {
    block(name) {
      if (!blocks.has(name)) blocks.set(name, read(name));
      return blocks.get(name);
    },
    view(id, start, { go = null, find = null } = {}) {
      const section = document.getElementById(id);
      if (!section || section.classList.contains("absent")) return;
      views.set(id, { start, go, find, started: null });
      near.observe(section);
    },
    prepare,
  };

  function follow() {
    const [id, place] = location.hash.slice(1).split("?").map(decodeURIComponent);
    if (!id) return;
    const view = views.get(id);
    if (view?.go && place) begin(id).then(() => view.go(new URLSearchParams(location.hash.split("?")[1])));
    let target = document.getElementById(id);
    for (const list of lists) target ||= list.show(id);
    if (!target) return;
    document.querySelectorAll(".here").forEach((each) => each.classList.remove("here"));
    if (target.tagName === "TR") target.classList.add("here");
    if (target.tagName !== "SECTION") target.querySelectorAll("details").forEach((details) => (details.open = true));
    for (let up = target.parentElement; up; up = up.parentElement) {
      if (up.tagName === "DETAILS") up.open = true;
      up.hidden = false;
    }
    target.scrollIntoView({ block: target.tagName === "SECTION" ? "start" : "center" });
  }

  document.addEventListener("toggle", (event) => {
    if (event.target.open) fill(event.target);
  }, true);
  prepare(document);
  let waiting = 0;
  search?.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(searchAll, 120);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && document.activeElement === search) {
      search.value = "";
      searchAll();
    }
  });
  addEventListener("hashchange", follow);
  // A chip that is clicked twice leads there twice.
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest('a[href^="#"]');
    if (anchor && anchor.hash === location.hash) follow();
  });
  queueMicrotask(follow); // when the scripts behind this one have said what they do
})();
