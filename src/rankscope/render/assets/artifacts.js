// The files of compilations: each is packed with others in a block of data, and unpacked when it is opened.
(() => {
  "use strict";
  const pane = document.querySelector("dialog.artifact");
  if (!pane) return;
  const [title, download, close] = pane.querySelector("header").children;
  const about = pane.querySelector("p");
  const content = pane.querySelector("div");
  let shown = ""; // the place of the text that is shown: block.position
  let before = ""; // where the page was

  function clear() {
    if (download.href) URL.revokeObjectURL(download.href);
    download.removeAttribute("href");
    download.hidden = true;
    content.replaceChildren();
    about.textContent = "";
  }

  function show(file, whose) {
    title.textContent = `${whose} ${file.name}`.trim();
    about.textContent = file.about;
    download.href = URL.createObjectURL(new Blob([file.text], { type: "text/plain" }));
    download.download = title.textContent.replace(/[^\w.-]+/g, "_") + (file.language === "python" ? ".py" : ".txt");
    download.hidden = false;
    const pre = document.createElement("pre");
    pre.className = "code";
    if (file.language) pre.dataset.language = file.language;
    pre.textContent = file.text;
    content.replaceChildren(pre);
    showCode(pre, "artifact-");
    content.scrollTop = 0;
  }

  // `whose` is the compilation that asks: others may have the same text.
  async function open(place, whose = "") {
    clear();
    shown = place;
    title.textContent = "…";
    if (!pane.open) pane.showModal();
    const [block, position] = place.split(".");
    let file;
    try {
      file = (await rankscope.block(`artifact-${Number(block)}`)).meta.files[Number(position)];
    } catch (error) {
      about.textContent = error.message;
    }
    if (shown !== place) return; // something else was opened meanwhile
    if (file) show(file, whose);
    else title.textContent = "This page does not contain the file.";
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#compile?file="]');
    if (!link) return;
    // Not by the address alone: the page behind the pane is to stay where it is.
    event.preventDefault();
    before = location.hash;
    history.replaceState(null, "", link.hash);
    const chip = link.closest("tr")?.querySelector(".chip");
    open(new URLSearchParams(link.hash.split("?")[1]).get("file"), chip?.textContent);
  });
  close.addEventListener("click", () => pane.close());
  pane.addEventListener("click", (event) => {
    if (event.target === pane) pane.close(); // beside it
  });
  pane.addEventListener("close", () => {
    shown = "";
    clear();
    history.replaceState(null, "", before || "#compile");
  });
  rankscope.view("compile", () => {}, { go: (place) => place.has("file") && open(place.get("file")) });
})();
