// The map of ranks and collectives. Cells are bytes of a few layers; what is seen of them is painted into one image, the
// worst cell of each pixel. Names and stacks come from traces: they are only ever set as text.
(() => {
  "use strict";
  const section = document.getElementById("map");
  const canvas = section?.querySelector("canvas");
  if (!canvas) return;
  const PER_DECADE = 24, NEVER = 255, UNKNOWN_CALL = 65535, OTHER_LINE = 3, NOT_JOINED = 8; // as rank_map_data.py writes them
  const WIDEST = 28, TALLEST = 14, MAX_HEIGHT = 480, LEFT = 72, TOP = 22, RIGHT = 8, N_HEATS = 6;
  const SIGNS = ["", "", "", "", "•", "/", "!", "?", "×", "≠"];
  const [frame, tip, said, pinned, key, hits, off] = ["frame", "tip", "said", "pins", "legend", "hits", "off"].map((name) => section.querySelector(`.map-${name}`));
  const tools = Object.fromEntries([...section.querySelectorAll("[data-map]")].map((each) => [each.dataset.map, each]));
  const outlines = ["cursor", "pinned", "pinned"].map((kind) => make("div", "", `map-outline ${kind}`));
  let started, pool, map, rows, view, colors, cursor, pins = [], waiting = 0;

  function make(tag, text, kind = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    made.className = kind;
    return made;
  }

  function time(level) {
    const s = (10 ** (level / PER_DECADE) - 1) / 1e6;
    if (s >= 60) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
    const [value, unit] = s >= 1 ? [s, "s"] : s >= 1e-3 ? [s * 1e3, "ms"] : [s * 1e6, "us"];
    return `${Number(value.toPrecision(2))} ${unit}`;
  }

  // Data

  async function load(block) {
    off.textContent = "Loading the map…";
    off.hidden = false;
    const { meta, arrays } = await rankscope.block(block);
    off.hidden = true;
    if (!meta.restored) {
      // Each row was stored by what differs from the one above.
      for (const array of [arrays.calls, arrays.seqs]) for (let at = meta.columns; at < array.length; at++) array[at] ^= array[at - meta.columns];
      meta.restored = true;
    }
    const isFirst = !map;
    map = { ...arrays, meta, block, values: {}, n: meta.columns, isShared: arrays.seqs.length <= meta.columns };
    map.rowOf = new Map([...map.ranks].map((rank, row) => [rank, row]));
    cursor = null;
    // Where all is done, what is left to ask is who was late.
    if (isFirst && valuesOf("state").lastIndexOf(1) <= OTHER_LINE) tools.layer.value = "late";
    tools.choice.value = block;
    tools.group.replaceChildren(new Option("all", ""), ...meta.groups.map(([id, name, desc]) => new Option(`${name} ${desc}`, id)));
    tools.group.parentElement.hidden = meta.groups.length < 2;
    canvas.setAttribute("aria-label", `Map of ${meta.title}: ${map.ranks.length} ranks, ${map.n} columns`);
    arrange();
    pin();
  }

  // Which rows are shown, and in which order.
  function arrange() {
    const group = tools.group.selectedIndex - 1, host = tools.host?.value.trim().toLowerCase();
    const by = { rank: map.ranks, host: map.hosts, worst: map.worst }[tools.order.value];
    const isShown = (row) => (group < 0 || map.groups[row] === group) && (!host || hostOf(row).toLowerCase().includes(host));
    rows = Int32Array.from([...map.ranks.keys()].filter(isShown).sort((a, b) => by[a] - by[b] || a - b));
    map.placeOf = new Map([...rows].map((row, place) => [row, place]));
    legend();
    fit();
  }

  const hostOf = (row) => map.meta.hosts[map.hosts[row]] || "";
  const layer = () => map[tools.layer.value];
  const stateAt = (row, column) => map.state[row * map.n + column];
  const seqAt = (row, column) => map.seqs[(map.isShared ? 0 : map.groups[row] * map.n) + column];

  // A transfer's number is counted by pair: of several with the same one, the worst.
  function columnOf(seq, row = 0) {
    let found = -1;
    for (let column = 0; column < map.n; column++) {
      const behind = seq - seqAt(row, column);
      const isIn = behind >= 0 && behind < (map.merged?.[column] || 1) && (map.isShared || stateAt(row, column));
      if (isIn && (found < 0 || stateAt(row, column) > stateAt(row, found))) found = column;
    }
    return found;
  }

  function worstColumn(row) {
    let worst = 0;
    for (let column = 1; column < map.n; column++) if (stateAt(row, column) >= stateAt(row, worst)) worst = column;
    return worst;
  }

  // Drawing

  // Which cells each pixel shows: from the first up to the second.
  function edges(first, perPixel, n, limit) {
    const edge = (pixel) => Math.min(limit, Math.floor(first + pixel * perPixel + 1e-6));
    const starts = Int32Array.from({ length: n }, (_, pixel) => Math.min(edge(pixel), limit - 1));
    return [starts, starts.map((start, pixel) => Math.max(start + 1, edge(pixel + 1)))];
  }

  function paint(width, height, scale) {
    const [left, right] = edges(view.x, 1 / (view.w * scale), width, map.n);
    const [above, below] = edges(view.y, 1 / (view.h * scale), height, rows.length);
    const data = layer(), first = left[0], worst = new Uint8Array(right[width - 1] - first), values = new Uint8Array(width * height);
    const hasGap = [view.w * scale >= 5, view.h * scale >= 5]; // large cells have gaps
    for (let y = 0, at = 0; y < height; y++, at += width) {
      if (hasGap[1] && above[y + 1] > above[y]) continue;
      if (y && above[y] === above[y - 1] && below[y] === below[y - 1]) {
        values.copyWithin(at, at - width, at);
        continue;
      }
      worst.fill(0);
      for (let place = above[y]; place < below[y]; place++) {
        const from = rows[place] * map.n + first;
        for (let c = 0; c < worst.length; c++) if (data[from + c] > worst[c]) worst[c] = data[from + c];
      }
      for (let x = 0; x < width; x++) {
        if (hasGap[0] && left[x + 1] > left[x]) continue;
        for (let c = left[x] - first; c < right[x] - first; c++) if (worst[c] > values[at + x]) values[at + x] = worst[c];
      }
    }
    const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < values.length; at++) pixels[at] = colors[values[at]];
    // What is wrong is seen however small it is: its neighbors have its color too.
    if (tools.layer.value === "state" && !(hasGap[0] && hasGap[1])) {
      const steps = [...(hasGap[0] ? [] : [1, -1]), ...(hasGap[1] ? [] : [width, -width])];
      for (let at = 0; at < values.length; at++) {
        if (values[at] <= OTHER_LINE) continue;
        for (const step of steps) {
          const isBeside = Math.abs((at % width) - ((at + step) % width)) < 2;
          if (isBeside && values[at + step] < values[at]) pixels[at + step] = colors[values[at]];
        }
      }
    }
    return image;
  }

  // The longest has the last color, and each one before it a tenth of the time.
  const heatOf = (level) => Math.max(0, N_HEATS - 1 - Math.floor((map.longest - level) / PER_DECADE));

  function valuesOf(name) {
    if (map.values[name]) return map.values[name];
    const seen = (map.values[name] = new Uint8Array(256)), data = map[name];
    for (let at = 0; at < data.length; at++) seen[data[at]] = 1;
    return seen;
  }

  // What the colors mean; they are in the style sheet, and a cell's is looked up by its byte.
  function legend() {
    const seen = valuesOf(tools.layer.value), isState = tools.layer.value === "state", items = new Map();
    map.longest = seen.lastIndexOf(1, NEVER - 1);
    colors = new Uint32Array(256);
    for (let value = 1; value < 256; value++) {
      if (!seen[value]) continue;
      const heat = heatOf(value), most = time(map.longest - (N_HEATS - 1 - heat) * PER_DECADE);
      const [name, text] = isState
        ? [value, `${SIGNS[value]} ${map.meta.states[value]}`]
        : value === NEVER ? ["never", tools.layer.value === "late" ? "not joined" : "not finished"] : [`heat-${heat}`, `up to ${most}`];
      if (!items.has(name)) items.set(name, make("span", text));
      items.get(name).style.setProperty("--fill", `var(--map-${name})`);
      tip.style.color = `var(--map-${name})`;
      const [r, g, b] = getComputedStyle(tip).color.match(/\d+/g);
      colors[value] = (255 << 24) | (b << 16) | (g << 8) | r;
    }
    tip.style.color = "";
    key.replaceChildren(...items.values());
  }

  function fit() {
    view = { x: 0, y: 0, w: 0, h: 0 }; // the first column and row, and the size of a cell
    redraw();
  }

  function bound() {
    view.width = Math.max(60, frame.clientWidth - LEFT - RIGHT);
    view.height = Math.max(TALLEST, Math.min(MAX_HEIGHT, rows.length * TALLEST));
    view.w = Math.min(WIDEST, Math.max(view.width / map.n, view.w));
    view.h = Math.min(TALLEST, Math.max(view.height / rows.length, view.h));
    view.x = Math.max(0, Math.min(view.x, map.n - view.width / view.w));
    view.y = Math.max(0, Math.min(view.y, rows.length - view.height / view.h));
  }

  const redraw = () => (waiting ||= requestAnimationFrame(draw));
  const xOf = (column) => LEFT + (column - view.x) * view.w;
  const yOf = (place) => TOP + (place - view.y) * view.h;
  const lastColumn = () => Math.min(map.n, Math.ceil(view.x + view.width / view.w));
  const lastPlace = () => Math.min(rows.length, Math.ceil(view.y + view.height / view.h));

  function draw() {
    waiting = 0;
    if (!frame.clientWidth) return;
    bound();
    const scale = devicePixelRatio, context = canvas.getContext("2d"), height = TOP + view.height;
    canvas.width = Math.round((LEFT + view.width + RIGHT) * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const used = [Math.min(view.width, map.n * view.w), Math.min(view.height, rows.length * view.h)].map((each) => Math.round(each * scale));
    if (rows.length) context.putImageData(paint(...used, scale), LEFT * scale, TOP * scale);
    context.scale(scale, scale);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    signs(context);
    axes(context);
    outline();
    canvas.dataset.drawn = [map.block, tools.layer.value, rows.length].join(" ");
  }

  // In large cells a sign shows the state as well.
  function signs(context) {
    context.fillStyle = getComputedStyle(canvas).backgroundColor;
    context.textAlign = "center";
    if (tools.layer.value !== "state" || view.w < 9 || view.h < 11) return;
    for (let place = Math.floor(view.y); place < lastPlace(); place++) {
      for (let column = Math.ceil(view.x); column < lastColumn(); column++) {
        const sign = SIGNS[stateAt(rows[place], column)];
        if (sign) context.fillText(sign, xOf(column + 0.5), yOf(place + 0.5));
      }
    }
  }

  // A step that reads well: 1, 2 or 5 times a power of ten.
  function step(least) {
    const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
  }

  function axes(context) {
    const isByHost = tools.order.value === "host", style = getComputedStyle(key);
    const columns = step(70 / view.w), places = isByHost ? 1 : step(13 / view.h);
    const isOne = map.isShared || tools.group.selectedIndex || map.meta.groups.length < 2;
    const numberAt = (column) => (isOne && rows.length ? seqAt(rows[0], column) : column + 1);
    context.fillStyle = style.color;
    let lastX = 0, lastY = 0;
    for (let column = Math.floor(view.x); column < lastColumn(); column++) {
      const x = xOf(column + 0.5), last = numberAt(column) + (map.merged?.[column] || 1) - 1;
      if (last - (last % columns) < numberAt(column) || x - lastX < 50 || x < LEFT) continue;
      context.fillText(last - (last % columns), Math.min(x, LEFT + view.width - 12), 9);
      context.fillRect((lastX = x), TOP - 5, 1, 4);
    }
    context.textAlign = "right";
    for (let place = Math.floor(view.y); place < lastPlace(); place++) {
      const row = rows[place], y = yOf(place) + Math.min(view.h, 12) / 2;
      if (y - lastY < 12 || y < TOP || (isByHost ? place && map.hosts[row] === map.hosts[rows[place - 1]] : place % places)) continue;
      context.fillText(isByHost ? hostOf(row).slice(-9) : map.ranks[row], LEFT - 12, (lastY = y));
    }
    context.fillStyle = style.accentColor; // what findings name
    for (const { rank, seq } of map.meta.marks) {
      const row = map.rowOf.get(rank), y = yOf(map.placeOf.get(row) + 0.5), x = seq === null ? NaN : xOf(columnOf(seq, row) + 0.5);
      if (y >= TOP && y <= TOP + view.height) context.fillText("▶", LEFT - 1, y);
      if (x >= LEFT && x <= LEFT + view.width) context.fillText("▼", x + 5, TOP - 5);
    }
  }

  // Around the cursor and what is pinned.
  function outline() {
    [cursor, ...pins, null, null].slice(0, 3).forEach((cell, index) => {
      const { style } = outlines[index], x = xOf(cell?.column), y = yOf(map.placeOf.get(cell?.row));
      const isSeen = x >= LEFT - 1 && x < LEFT + view.width && y >= TOP - 1 && y < TOP + view.height;
      outlines[index].hidden = !isSeen;
      if (isSeen) Object.assign(style, { left: `${x - 2}px`, top: `${y - 2}px`, width: `${Math.max(4, view.w) + 3}px`, height: `${Math.max(4, view.h) + 3}px` });
    });
  }

  // Words

  // The call of a cell; of a rank that has not joined, the last one that it made.
  function callAt({ row, column }) {
    let at = row * map.n + column;
    if (map.state[at] === NOT_JOINED) while (at > row * map.n && map.calls[at] === UNKNOWN_CALL) at--;
    return map.calls[at];
  }

  function framesOf(call) {
    return (pool.stacks[pool.calls[call]?.[3]] || []).map((each) => pool.frames[each]);
  }

  function facts(cell) {
    const { row, column } = cell, at = row * map.n + column, late = map.late[at], took = map.duration[at];
    const [, name, desc] = map.meta.groups[map.groups[row]];
    const seq = seqAt(row, column), n = map.merged?.[column] || 1;
    const begun = map.starts?.[map.groups[row] * map.n + column];
    return [
      ["Rank", `${map.ranks[row]}`],
      ["Host", hostOf(row)],
      ["Group", `${name} ${desc}`],
      [map.meta.noun, n > 1 ? `the worst of ${seq} to ${seq + n - 1}` : `${seq}`],
      [map.state[at] === NOT_JOINED ? "Last call" : "Call", pool.calls[callAt(cell)]?.slice(0, 3).join(" ")],
      ["State", map.meta.states[map.state[at]]],
      ["Late", late === NEVER ? "not joined" : late > 1 ? `by ${time(late)}` : late && "no"],
      ["Took", took === NEVER ? "not finished yet" : took && time(took)],
      ["First to join", begun && `${new Date(begun).toISOString().slice(0, 23).replace("T", " ")} UTC`],
    ].filter(([, text]) => text);
  }

  function card(cell, other) {
    const made = make("article", ""), list = make("dl", ""), stack = make("ol", "", "stack");
    const theirs = new Map(other && facts(other)), [own, others] = [cell, other].map((each) => (each ? framesOf(callAt(each)) : []));
    const mark = (isSame) => (other && !isSame ? "differs" : "");
    for (const [label, text] of facts(cell)) list.append(make("dt", label), make("dd", text, mark(theirs.get(label) === text)));
    for (const each of own) stack.append(make("li", each, mark(others.includes(each))));
    made.append(list, stack);
    return made;
  }

  function announce() {
    said.textContent = facts(cursor).map((each) => each.join(" ")).join(", ");
  }

  // One that is pinned already is let go; without a cell, all are.
  function pin(...cells) {
    const isSame = (one) => (other) => one.row === other.row && one.column === other.column;
    pins = cells.length ? [...pins.filter((each) => !cells.some(isSame(each))), ...cells.filter((each) => !pins.some(isSame(each)))].slice(-2) : [];
    pinned.replaceChildren(...pins.map((each, index) => card(each, pins[1 - index])));
    redraw();
  }

  // Moving

  // Of the cells that share the pixel, the one whose color is visible.
  function cellAt(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const column = Math.floor(view.x + (x - LEFT) / view.w), place = Math.floor(view.y + (y - TOP) / view.h);
    if (x < LEFT || y < TOP || column >= map.n || place >= rows.length) return null;
    let found = { row: rows[place], column };
    for (const row of rows.subarray(place, place + Math.ceil(1 / view.h))) {
      for (let c = column; c < Math.min(map.n, column + 1 / view.w); c++) {
        if (layer()[row * map.n + c] > layer()[found.row * map.n + found.column]) found = { row, column: c };
      }
    }
    return { ...found, x, y };
  }

  function zoom(factor, x = LEFT + view.width / 2, y = TOP + view.height / 2) {
    const column = view.x + (x - LEFT) / view.w, place = view.y + (y - TOP) / view.h;
    view.w *= factor;
    view.h *= factor;
    bound();
    view.x = column - (x - LEFT) / view.w;
    view.y = place - (y - TOP) / view.h;
    redraw();
  }

  function reveal({ row, column }) {
    const place = map.placeOf.get(row), w = view.width / view.w, h = view.height / view.h;
    if (column < view.x || column + 1 > view.x + w) view.x = column - w / 2;
    if (place < view.y || place + 1 > view.y + h) view.y = place - h / 2;
    redraw();
  }

  function hover(event) {
    const cell = cellAt(event);
    tip.hidden = !cell;
    if (!cell) return;
    cursor = cell;
    outline();
    tip.replaceChildren(card(cell));
    const besides = cell.x + 16 + tip.offsetWidth < frame.clientWidth ? cell.x + 16 : Math.max(0, cell.x - tip.offsetWidth - 12);
    Object.assign(tip.style, { left: `${besides}px`, top: `${cell.y + 14}px` });
  }

  let held = null, moved = 0; // where the pointer was last, while it is down
  const listeners = {
    pointerdown(event) {
      held = event;
      moved = 0;
      canvas.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
      if (!held) return hover(event);
      const dx = event.clientX - held.clientX, dy = event.clientY - held.clientY;
      view.x -= dx / view.w;
      view.y -= dy / view.h;
      moved += Math.abs(dx) + Math.abs(dy);
      held = event;
      tip.hidden = true;
      redraw();
    },
    pointerup(event) {
      const cell = held && moved < 5 && cellAt(event);
      held = null;
      if (cell) pin(cell);
    },
    pointercancel: () => (held = null),
    pointerleave: () => (tip.hidden = true),
    wheel(event) {
      const before = [view.w, view.h], box = canvas.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
      if (before[0] !== view.w || before[1] !== view.h) event.preventDefault(); // else the page scrolls on
      tip.hidden = true;
    },
    keydown(event) {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -10], PageDown: [0, 10], Home: [-map.n, 0], End: [map.n, 0] };
      const acts = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit, Enter: () => cursor && pin(cursor), " ": () => cursor && pin(cursor) };
      if (event.ctrlKey || event.metaKey || event.altKey || !rows.length || !(event.key in steps || event.key in acts)) return;
      event.preventDefault();
      acts[event.key]?.();
      const [dx, dy] = steps[event.key] || [];
      if (dx === undefined) return;
      const column = cursor ? cursor.column + dx : Math.floor(view.x), place = cursor ? (map.placeOf.get(cursor.row) ?? 0) + dy : Math.floor(view.y);
      cursor = { row: rows[Math.max(0, Math.min(rows.length - 1, place))], column: Math.max(0, Math.min(map.n - 1, column)) };
      announce();
      reveal(cursor);
    },
  };

  // A deep link: group=3&seq=48211&rank=513, and p2p=1 for a transfer.
  async function go(params) {
    const having = pool.choices.filter((each) => each.groups.includes(params.get("group")));
    const choice = having.find((each) => (each.noun === "transfer") === params.has("p2p")) || having[0];
    if (tools.host) tools.host.value = "";
    if (choice && choice.block !== map.block) await load(choice.block);
    tools.group.value = choice && map.meta.groups.length > 1 ? params.get("group") : "";
    arrange();
    const row = params.has("rank") ? map.rowOf.get(Number(params.get("rank"))) : rows[0];
    if (row === undefined) return;
    const column = params.has("seq") ? columnOf(Number(params.get("seq")), row) : worstColumn(row);
    if (column < 0) return;
    cursor = { row, column };
    bound();
    view.w = view.width / 60;
    view.h = view.height / 30;
    bound();
    view.x = column - view.width / view.w / 2;
    view.y = map.placeOf.get(row) - view.height / view.h / 2;
    pin();
    if (params.has("rank")) pin(cursor, ...peer(row, column));
    announce();
  }

  // Beside the rank that a link names: the first of its group that did otherwise.
  function peer(row, column) {
    const differs = (layer, other) => layer[other * map.n + column] !== layer[row * map.n + column];
    const isPeer = (other) => map.groups[other] === map.groups[row] && map.calls[other * map.n + column] !== UNKNOWN_CALL && (differs(map.calls, other) || differs(map.state, other));
    const found = rows.find(isPeer);
    return found === undefined ? [] : [{ row: found, column }];
  }

  // Search

  function find(words) {
    if (!map) {
      // It is made again when the data is here.
      if (words.length) begin().then(() => document.getElementById("search").dispatchEvent(new Event("input")));
      return 0;
    }
    const found = words.length ? [...foundRanks(words), ...foundCalls(words)] : [];
    hits.hidden = !found.length;
    hits.replaceChildren(...found.slice(0, 20).map(({ row, column, text }) => {
      const item = make("li", ""), link = make("a", text);
      const place = { group: map.meta.groups[map.groups[row]][0], seq: seqAt(row, column), rank: map.ranks[row] };
      link.href = `#map?${new URLSearchParams(place)}${map.meta.noun === "transfer" ? "&p2p=1" : ""}`;
      item.append(link);
      return item;
    }));
    return found.length;
  }

  function foundRanks(words) {
    const named = words.filter((word) => word !== "rank");
    const has = (row) => named.every((word) => word === String(map.ranks[row]) || (word.length > 2 && hostOf(row).toLowerCase().includes(word)));
    return (named.length ? [...map.ranks.keys()].filter(has) : []).map((row) => ({ row, column: worstColumn(row), text: `rank ${map.ranks[row]} ${hostOf(row)}` }));
  }

  function foundCalls(words) {
    if (!map.counts) {
      map.counts = new Uint32Array(UNKNOWN_CALL + 1);
      map.examples = map.counts.slice();
      map.calls.forEach((call, at) => {
        map.counts[call] += 1;
        map.examples[call] = at;
      });
    }
    const found = [];
    pool.calls.forEach((call, number) => {
      const n = map.counts[number], text = [...call.slice(0, 3), ...framesOf(number)].join(" ");
      if (!n || !words.every((word) => text.toLowerCase().includes(word))) return;
      const at = map.examples[number];
      found.push({ row: Math.floor(at / map.n), column: at % map.n, n, text: `${call.slice(0, 3).join(" ")} ${framesOf(number)[0] || ""}: ${n} calls` });
    });
    return found.sort((a, b) => a.n - b.n); // what is rare is what is looked for
  }

  async function start() {
    pool = (await rankscope.block("map-calls")).meta;
    const loading = load(tools.choice.value);
    for (const each of section.querySelectorAll(".map-tools, .map-legend, .map-frame, .map-keys")) each.hidden = false;
    frame.append(...outlines);
    await loading;
    for (const [name, listener] of Object.entries(listeners)) canvas.addEventListener(name, listener, { passive: false });
    section.addEventListener("keydown", (event) => event.key === "Escape" && pin());
    const recolor = () => (legend(), redraw());
    const changes = { choice: () => load(tools.choice.value), group: arrange, order: arrange, host: arrange, layer: recolor };
    for (const [name, change] of Object.entries(changes)) tools[name]?.addEventListener("input", change);
    const clicks = { in: () => zoom(1.5), out: () => zoom(1 / 1.5), fit };
    for (const [name, click] of Object.entries(clicks)) tools[name].addEventListener("click", click);
    new ResizeObserver(redraw).observe(frame);
    for (const name of ["resize", "themechange"]) addEventListener(name, recolor);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  }

  const begin = () => (started ||= start());
  rankscope.view("map", begin, { go, find });
  // What a cell shows, in words, and what part of the map is seen: tests look at these.
  rankscope.map = {
    cell: (rank, seq) => map.meta.states[stateAt(map.rowOf.get(rank), columnOf(seq, map.rowOf.get(rank))) || 0],
    view: () => ({ ...view, rows: rows.length, columns: map.n, left: xOf(0), top: yOf(0) }),
  };
})();
