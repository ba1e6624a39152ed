// Charts of the views Performance and Metrics: one tooltip for all marks, by pointer and by arrow keys, and maps with too
// many cells for elements. Everything a chart says is in its marks' titles or in a block of numbers.
(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  // Beside the place, and within the window.
  function say(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
    const top = y + 14 + height > innerHeight ? y - height - 14 : y + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }
  function hush() {
    tip.hidden = true;
    document.querySelectorAll(".chart .on").forEach((each) => each.classList.remove("on"));
  }

  // The browser's own tooltip is slow and comes on top of ours: the titles become data.
  function takeTitles(chart) {
    for (const title of chart.querySelectorAll("title")) {
      title.parentElement.dataset.tip = title.textContent;
      title.remove();
    }
  }

  function point(mark) {
    hush();
    mark.classList.add("on");
    const box = mark.getBoundingClientRect();
    say(mark.dataset.tip, box.right, box.top + box.height / 2);
  }

  // Left and right go from mark to mark; up and down to the nearest one in the row above or below.
  function next(marks, current, key) {
    if (!marks.length) return null;
    const index = marks.indexOf(current);
    if (index < 0) return marks[0];
    if (key === "ArrowRight") return marks[Math.min(index + 1, marks.length - 1)];
    if (key === "ArrowLeft") return marks[Math.max(index - 1, 0)];
    const own = current.getBoundingClientRect();
    const isAhead = (box) => (key === "ArrowDown" ? box.top >= own.bottom - 1 : box.bottom <= own.top + 1);
    const distance = (box) => 4 * Math.abs(box.top - own.top) + Math.abs(box.left - own.left);
    let best = null, least = Infinity;
    for (const mark of marks) {
      const box = mark.getBoundingClientRect();
      if (isAhead(box) && distance(box) < least) [best, least] = [mark, distance(box)];
    }
    return best || current;
  }

  // A map on a canvas. Rows that share a line of pixels show their longest time.
  class Heat {
    constructor(canvas, { meta, arrays }) {
      Object.assign(this, { canvas, meta, ...arrays, rows: arrays.rank.length, at: null });
      this.height = canvas.height;
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
        this.at = [this.within(row, this.rows), this.within(Math.floor(((event.clientX - box.left) / box.width) * meta.columns), meta.columns)];
        this.tell(event.clientX, event.clientY, Math.max(1, Math.floor(this.rows / box.height)));
      });
      canvas.addEventListener("pointerleave", hush);
      const redraw = () => this.draw();
      addEventListener("resize", redraw);
      addEventListener("themechange", redraw);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
      this.draw();
    }
    within(place, n) {
      return Math.max(0, Math.min(n - 1, place));
    }
    // Of the rows that share a line of pixels, the visible one is described.
    tell(x, y, together) {
      const [row, column] = this.at;
      const first = row - (row % together), last = Math.min(this.rows, first + together);
      let best = first;
      for (let each = first; each < last; each++) if (this.cell(each, column) > this.cell(best, column)) best = each;
      const value = this.cell(best, column), { low, high, unit } = this.meta;
      const said = value ? `${(low + ((value - 1) / 65533) * (high - low)).toPrecision(4)} ${unit}` : "not recorded";
      const others = together > 1 ? `\nthe longest of ranks ${this.rank[first]} to ${this.rank[last - 1]}` : "";
      say(`rank ${this.rank[best]}, step ${this.step[column]}: ${said}${others}`, x, y);
    }
    move(key) {
      const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[key];
      const [row, column] = this.at ? [this.at[0] + down, this.at[1] + right] : [0, 0];
      this.at = [this.within(row, this.rows), this.within(column, this.meta.columns)];
      const box = this.canvas.getBoundingClientRect();
      this.tell(box.left + ((this.at[1] + 0.5) / this.meta.columns) * box.width, box.top + ((this.at[0] + 0.5) / this.rows) * box.height, 1);
    }
    cell(row, column) {
      return this.value[row * this.meta.columns + column];
    }
    draw() {
      const { columns } = this.meta;
      const lines = Math.min(this.rows, this.height);
      const image = new ImageData(columns, lines);
      const low = color(this.canvas, "--heat-low"), high = color(this.canvas, "--heat-high");
      for (let line = 0; line < lines; line++) {
        const first = Math.floor((line * this.rows) / lines);
        const last = Math.max(first + 1, Math.floor(((line + 1) * this.rows) / lines));
        for (let column = 0; column < columns; column++) {
          let value = 0;
          for (let row = first; row < last; row++) value = Math.max(value, this.cell(row, column));
          if (!value) continue;
          const share = (value - 1) / 65533, place = (line * columns + column) * 4;
          for (let part = 0; part < 3; part++) image.data[place + part] = low[part] + share * (high[part] - low[part]);
          image.data[place + 3] = 255;
        }
      }
      const small = new OffscreenCanvas(columns, lines);
      small.getContext("2d").putImageData(image, 0, 0);
      this.canvas.style.height = `${this.height}px`;
      this.canvas.width = this.canvas.clientWidth * devicePixelRatio;
      this.canvas.height = this.height * devicePixelRatio;
      const context = this.canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
    }
  }

  // What a variable of the theme is just now: drawn once, as its own value may be a mixture.
  function color(near, name) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    near.parentElement.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    const dot = new OffscreenCanvas(1, 1).getContext("2d");
    dot.fillStyle = found;
    dot.fillRect(0, 0, 1, 1);
    return dot.getImageData(0, 0, 1, 1).data;
  }

  async function start(section) {
    for (const chart of section.querySelectorAll(".chart")) {
      takeTitles(chart);
      let heat = null;
      chart.addEventListener("pointermove", (event) => {
        if (event.target.tagName === "CANVAS") return;
        const mark = event.target.closest("[data-tip]");
        if (mark) say(mark.dataset.tip, event.clientX, event.clientY);
        else hush();
      });
      chart.addEventListener("pointerleave", hush);
      chart.addEventListener("blur", hush);
      chart.addEventListener("keydown", (event) => {
        if (event.key === "Escape") return hush();
        if (!event.key.startsWith("Arrow") || event.target !== chart) return;
        event.preventDefault();
        if (heat) return heat.move(event.key);
        const mark = next([...chart.querySelectorAll(".mark")], chart.querySelector(".on"), event.key);
        if (mark) point(mark);
      });
      const canvas = chart.querySelector("canvas[data-block-name]");
      if (canvas) heat = new Heat(canvas, await rankscope.block(canvas.dataset.blockName));
    }
  }

  // #performance?rank=63 shows the rank's own bars.
  function go(params) {
    const labels = document.querySelectorAll(`#performance [data-rank="${CSS.escape(params.get("rank") ?? "")}"]`);
    document.querySelectorAll(".of.here").forEach((each) => each.classList.remove("here"));
    labels.forEach((each) => each.classList.add("here"));
    labels[0]?.scrollIntoView({ block: "center" });
  }

  // Rows that are found must not stay folded.
  const unfold = (id) => (words) => {
    if (words.length) document.querySelectorAll(`#${id} details.rows`).forEach((each) => (each.open = true));
    return 0;
  };

  // Under the pointer is something else then; what the keys have chosen is still chosen.
  function follow() {
    const chart = document.activeElement, mark = chart.matches(".chart") && chart.querySelector(".mark.on");
    if (mark) point(mark);
    else hush();
  }
  addEventListener("scroll", follow, { passive: true });
  rankscope.view("performance", start, { go, find: unfold("performance") });
  rankscope.view("metrics", start, { find: unfold("metrics") });
})();
