// A report in one file: the other files are compressed in blocks of data and shown in a pane of this page.
(() => {
  "use strict";
  const MAX_SHOWN = 3e7; // characters of text; larger files are offered for download only
  const files = new Map([...document.querySelectorAll("script[data-file]")].map((each) => [each.dataset.file, each]));
  const pane = document.getElementById("pane");
  const title = pane.querySelector("b");
  const download = pane.querySelector("a");
  const content = pane.querySelector(".content");
  let shown = "";
  let address = "";
  let closedAt = "";

  async function bytesOf(path) {
    const packed = Uint8Array.from(atob(files.get(path).textContent), (char) => char.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).blob();
  }

  // Where a link of the page at `path` leads: [file of the report, fragment], or nothing when it leads elsewhere.
  function target(href, path) {
    if (href === null || /^[a-z][\w+.-]*:|^\/\//i.test(href)) return null;
    const url = new URL(href, "pack://report/" + path.split("/").map(encodeURIComponent).join("/"));
    return [decodeURIComponent(url.pathname.slice(1)), decodeURIComponent(url.hash.slice(1))];
  }

  function onClick(event, path, goTo) {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || link.hasAttribute("download")) return;
    const found = target(link.getAttribute("href"), path);
    if (!found) return;
    const [file, fragment] = found;
    if (file === path && goTo) {
      event.preventDefault();
      goTo(fragment);
    } else if (file !== path) {
      event.preventDefault();
      if (file === "index.html") close(fragment); else location.hash = "file:" + file + (fragment ? "#" + fragment : "");
    }
  }

  function showPage(html, path, fragment) {
    const frame = document.createElement("iframe");
    frame.title = path;
    frame.addEventListener("load", () => {
      // An address inside such a frame is not one of a file, so its own links are followed here.
      const goTo = (name) => (frame.contentWindow.location.hash = name);
      frame.contentDocument.addEventListener("click", (event) => onClick(event, path, goTo));
      frame.contentDocument.addEventListener("keydown", onKey);
      if (fragment) goTo(fragment);
    });
    frame.srcdoc = html;
    content.before(frame);
    content.hidden = true;
  }

  function showText(text, path) {
    const pre = document.createElement("pre");
    pre.className = "code";
    if (/graph|code|runnable|autograd|compiled|backward/.test(path) && !path.endsWith(".json")) pre.dataset.language = "python";
    pre.textContent = text;
    content.replaceChildren(pre);
    showCode(pre, "pane-");
  }

  async function open(path, fragment) {
    clear();
    shown = path;
    title.textContent = path;
    pane.hidden = false;
    if (!files.has(path)) {
      download.hidden = true;
      content.textContent = `${path} is not in this report: it was too large or does not exist.`;
      return;
    }
    const blob = await bytesOf(path);
    if (shown !== path) return; // something else was opened meanwhile
    download.hidden = false;
    address = URL.createObjectURL(blob);
    download.href = address;
    download.download = path.split("/").pop();
    if (blob.size > MAX_SHOWN) content.textContent = "Too large to show here; download it instead.";
    else if (path.endsWith(".html")) showPage(await blob.text(), path, fragment);
    else showText(await blob.text(), path);
    pane.querySelector("button").focus();
  }

  function clear() {
    pane.querySelector("iframe")?.remove();
    content.hidden = false;
    content.replaceChildren();
    if (address) URL.revokeObjectURL(address);
    address = shown = "";
  }

  function close(fragment) {
    location.hash = fragment || closedAt;
    if (!fragment && !closedAt) follow();
  }

  function follow() {
    const hash = decodeURIComponent(location.hash.slice(1));
    if (hash.startsWith("file:")) {
      const [path, fragment] = hash.slice(5).split("#");
      open(path, fragment);
    } else {
      closedAt = hash;
      pane.hidden = true;
      clear();
    }
  }

  function onKey(event) {
    if (event.key === "Escape" && !pane.hidden) close("");
  }

  document.addEventListener("click", (event) => {
    if (!pane.contains(event.target)) onClick(event, "index.html", null);
  });
  pane.querySelector("button").addEventListener("click", () => close(""));
  addEventListener("keydown", onKey);
  addEventListener("hashchange", follow);
  follow();
})();
