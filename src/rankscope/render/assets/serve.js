// Hands the timeline to Perfetto. It goes from window to window within this browser: nothing is sent over the network.
(() => {
  "use strict";
  const button = document.getElementById("perfetto");
  if (!button) return;
  const { from, to } = button.dataset;
  const said = document.createElement("span");
  said.role = "status";
  document.querySelector(".bar").append(button, said);
  button.hidden = false;

  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  async function fetched() {
    const answer = await fetch(from);
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.arrayBuffer();
  }

  // Perfetto answers PING when it has loaded. Until then the window could be any site's, so it gets nothing else.
  async function loaded(other) {
    let isReady = false;
    const hear = (event) => (isReady ||= event.source === other && event.origin === to && event.data === "PONG");
    addEventListener("message", hear);
    for (let n = 0; !isReady && !other.closed && n < 600; n += 1) {
      other.postMessage("PING", "*");
      await pause(100);
    }
    removeEventListener("message", hear);
    if (!isReady) throw new Error(`${to} did not answer. Write the file instead: rankscope timeline PATH -o timeline.json.gz`);
  }

  button.addEventListener("click", async () => {
    const other = open(to); // at once: browsers refuse windows that open long after the click
    button.disabled = true;
    said.textContent = "Making the timeline…";
    try {
      if (!other) throw new Error("The browser blocked the new window. Allow pop-ups for this page.");
      const [buffer] = await Promise.all([fetched(), loaded(other)]);
      other.postMessage({ perfetto: { buffer, title: document.title } }, to, [buffer]);
      said.textContent = "";
    } catch (error) {
      said.textContent = error.message;
    }
    button.disabled = false;
  });
})();
