// The script of every page: exchange the link for a token, load the content, keep it current, confirm dangerous actions.
// The token is in localStorage, which belongs to this origin with its port; it is sent as a header and never in an address.
(() => {
  "use strict";
  const KEY = "posthouse-console-token";
  const page = document.getElementById("page");
  const streamState = document.getElementById("stream");
  const notice = document.getElementById("notice");
  const REFRESH_MS = 15000;
  const SETTLE_MS = 150;
  const REST_FACTOR = 4; // pause after a refresh, as a multiple of its duration
  let token = localStorage.getItem(KEY);
  let stream = null; // AbortController of the open stream
  let isPaused = false;
  let loadedAt = 0;

  const show = (state, words) => { streamState.dataset.state = state; streamState.textContent = words; };
  const headers = () => ({ Authorization: `Bearer ${token}` });
  const dataPath = () => `/data${location.pathname}${location.search}`;
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));

  function lock(why) {
    stopStream();
    token = null;
    localStorage.removeItem(KEY);
    page.replaceChildren(document.getElementById("locked").content.cloneNode(true));
    if (why) document.getElementById("locked-why").textContent = why;
    show("off", "locked");
  }

  async function exchange(code) {
    const response = await fetch("/session", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }),
    });
    if (response.ok) {
      token = (await response.json()).token;
      localStorage.setItem(KEY, token);
      return null;
    }
    const why = parse(await response.text()).querySelector("strong").textContent;
    return `The console stays locked: ${why}.`;
  }

  // Text of a fragment becomes nodes only here and in htmx; the server has escaped it, and the policy runs no inline code.
  const parse = (html, parent) => {
    const box = document.createElement("template");
    box.innerHTML = parent === "tbody" ? `<table><tbody>${html}</tbody></table>` : html;
    return parent === "tbody" ? box.content.querySelector("tbody") : box.content;
  };

  async function fetchPage() {
    const response = await fetch(dataPath(), { headers: headers(), cache: "no-store" });
    if (response.status === 401) { lock("The console was restarted, or this browser never opened its link."); return null; }
    loadedAt = Date.now();
    return { ok: response.ok, html: await response.text() };
  }

  async function load() {
    const found = await fetchPage();
    if (!found) return;
    page.replaceChildren(parse(found.html));
    page.dataset.ready = "true";
    const heading = page.querySelector("h1");
    if (heading) document.title = `${heading.textContent.trim()} · posthouse`;
    htmx.process(page);
  }

  // Replaces the parts that changed; a part that a person is using (focus, ticks, open details) stays.
  async function refresh() {
    let found;
    try { found = await fetchPage(); } catch { return; }
    if (!found || !found.ok) return;
    const fresh = parse(found.html);
    for (const part of page.querySelectorAll("[data-live][id]")) {
      const next = fresh.getElementById(part.id);
      const isFocused = part !== document.activeElement && part.contains(document.activeElement);
      const isBusy = isFocused || part.querySelector("input:checked, details[open]");
      if (!next || isBusy || next.innerHTML === part.dataset.html) continue;
      next.dataset.html = next.innerHTML;
      part.replaceWith(next);
      htmx.process(next);
    }
  }

  function stopStream() {
    if (stream) stream.abort();
    stream = null;
  }

  async function readLines(url, onLine, signal) {
    const response = await fetch(url, { headers: headers(), signal, cache: "no-store" });
    if (response.status === 401) { lock("The console was restarted: open its new link."); return; }
    if (!response.ok) throw new Error(String(response.status));
    show("on", "live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) onLine(JSON.parse(line));
    }
  }

  // One stream for the visible page; hidden and paused pages have none and resume where they stopped.
  async function follow() {
    stopStream();
    if (!token || document.hidden || isPaused) { if (token) show("paused", isPaused ? "paused" : "resting"); return; }
    const mine = stream = new AbortController();
    let wait = 250;
    while (stream === mine) {
      try {
        const rows = document.getElementById("rows");
        if (rows && rows.dataset.stream) await readLines(liveUrl(rows), (line) => addRows(rows, line), mine.signal);
        else await readLines("/stream/changes", onChange, mine.signal);
        wait = 250;
      } catch { /* the console is unreachable, or this page closed the stream */ }
      if (stream !== mine) return;
      show("lost", "reconnecting");
      await pause(wait);
      wait = Math.min(wait * 2, 4000);
    }
  }

  // One refresh at a time, with a pause in proportion to its duration: a page that is slow to load is loaded less often.
  let isRefreshing = false;
  let isStale = false;
  async function onChange(line) {
    if (line.changed === undefined && Date.now() - loadedAt < REFRESH_MS) return;
    isStale = true;
    if (isRefreshing) return;
    isRefreshing = true;
    try {
      await pause(SETTLE_MS);
      while (isStale && !document.hidden) {
        isStale = false;
        const began = Date.now();
        await refresh();
        await pause((Date.now() - began) * REST_FACTOR);
      }
    } finally { isRefreshing = false; }
  }

  function liveUrl(rows) {
    const url = new URL(rows.dataset.stream, location.origin);
    url.searchParams.set("after", rows.dataset.after);
    if (rows.dataset.cursor) url.searchParams.set("cursor", rows.dataset.cursor);
    return url;
  }

  function addRows(rows, line) {
    if (line.html) {
      rows.prepend(...parse(line.html, "tbody").children);
      document.getElementById("no-rows").hidden = true;
      while (rows.children.length > Number(rows.dataset.shown) * 5) rows.lastElementChild.remove();
    }
    if (line.after !== undefined) rows.dataset.after = line.after;
    if (line.cursor) rows.dataset.cursor = line.cursor;
  }

  const dialog = document.getElementById("confirm");
  let settle = null; // resolves the promise of the open question
  function ask(text) {
    document.getElementById("confirm-text").textContent = text;
    dialog.showModal();
    return new Promise((answered) => { settle = answered; });
  }
  function answer(isYes) {
    const answered = settle;
    settle = null;
    dialog.close();
    if (answered) answered(isYes);
  }
  document.getElementById("confirm-yes").addEventListener("click", () => answer(true));
  document.getElementById("confirm-no").addEventListener("click", () => answer(false));
  // Escape closes the dialog. The event comes later: by then the next question may be open, and stays unanswered.
  dialog.addEventListener("close", () => { if (!dialog.open) answer(false); });

  document.addEventListener("htmx:configRequest", (event) => Object.assign(event.detail.headers, headers()));
  document.addEventListener("htmx:confirm", (event) => {
    if (!event.detail.question) return;
    event.preventDefault();
    ask(event.detail.question).then((yes) => { if (yes) event.detail.issueRequest(true); });
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.xhr.status === 401) lock("The console was restarted: open its new link.");
    const form = event.detail.elt.closest("form");
    if (event.detail.successful && form && form.hasAttribute("data-reset")) form.reset();
    if (event.detail.successful) for (const box of page.querySelectorAll("input:checked")) box.checked = false;
  });
  // The part that contains the used button is replaced as well; keyboard focus then continues from that part.
  document.addEventListener("console-changed", async () => {
    const part = document.activeElement.closest("[data-live][id]");
    document.activeElement.blur();
    await refresh();
    const fresh = part && document.getElementById(part.id);
    if (fresh) { fresh.tabIndex = -1; fresh.focus({ preventScroll: true }); }
  });
  notice.addEventListener("click", () => notice.replaceChildren());
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === notice) { clearTimeout(notice.timer); notice.timer = setTimeout(() => notice.replaceChildren(), 8000); }
  });

  page.addEventListener("change", (event) => {
    if (event.target.hasAttribute("data-all")) {
      for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
    } else if (event.target.matches("[data-filters] select")) event.target.form.requestSubmit();
  });
  page.addEventListener("click", (event) => {
    if (event.target.id !== "pause") return;
    isPaused = !isPaused;
    event.target.setAttribute("aria-pressed", String(isPaused));
    event.target.textContent = isPaused ? "Resume" : "Pause";
    follow();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !document.getElementById("pause")) refresh(); follow(); });

  async function start() {
    for (const link of document.querySelectorAll(".bar nav a")) {
      const here = location.pathname === "/" ? "/team" : location.pathname.replace("/messages/", "/conversations/");
      if (here === link.pathname || here.startsWith(`${link.pathname}/`)) link.setAttribute("aria-current", "page");
    }
    const link = /^#link=([\w-]+)$/.exec(location.hash);
    let refusal = null;
    if (link) {
      history.replaceState(null, "", location.pathname + location.search);
      refusal = await exchange(link[1]);
    }
    if (!token) { lock(refusal); return; }
    await load();
    follow();
  }
  start();
})();
