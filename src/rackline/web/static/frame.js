// @ts-check
// The frame of the page: views, the address as their state, data files, themes. All scripts are classic ones, because
// modules do not load from a disk (file://), and talk to each other through `rackline` alone.
"use strict";

var rackline = /** @type {Rackline} */ (/** @type {unknown} */ ((() => {
  /** @type {Map<string, View>} */
  const views = new Map();
  /** @type {Map<string, any>} */
  const data = new Map();
  /** @type {Map<string, {promise: Promise<any>, done: (value: any) => void}>} */
  const waiting = new Map();
  const helpers = { bisect: bisect, rint: rint };

  /** @param {number[]} bends @param {number} x */
  function bisect(bends, x) {
    let low = 0;
    let high = bends.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (x < bends[mid]) high = mid;
      else low = mid + 1;
    }
    return low;
  }

  /** @param {number} x */
  function rint(x) {
    const near = Math.round(x);
    return near - x === 0.5 && near % 2 !== 0 ? near - 1 : near;
  }

  /** A data file hands itself over. @param {string} name @param {any} value */
  function give(name, value) {
    data.set(name, value);
    const one = waiting.get(name);
    if (one) one.done(value);
  }

  /** A scenario hands itself over. @param {any} facts @param {(helpers: any) => any} make */
  function scenario(facts, make) {
    const asked = document.currentScript && document.currentScript.dataset.name; // of what a server was asked for
    const name = asked ? asked.replace("scenario-", "") : facts.name;
    give(`scenario-${name}`, { facts: { ...facts, name }, ...make(helpers) });
  }

  /** A data file, loaded once. @param {string} name @param {string=} address @returns {Promise<any>} */
  function load(name, address) {
    if (data.has(name)) return Promise.resolve(data.get(name));
    const known = waiting.get(name);
    if (known) return known.promise;
    /** @type {(value: any) => void} */
    let done = () => {};
    const promise = new Promise((resolve, reject) => {
      done = resolve;
      const script = document.createElement("script");
      script.src = address || `data/${name}.js`;
      if (address) script.dataset.name = name;
      script.onerror = () => {
        waiting.delete(name);
        reject(new Error(`${script.src} did not load`));
      };
      document.head.append(script);
    });
    waiting.set(name, { promise, done });
    return promise;
  }

  // ---- the address -------------------------------------------------------------------------------------------------

  /** @returns {{id: string, state: State, unknown: string, made: string}} made: version of rackline that wrote the address */
  function address() {
    const [id, query] = location.hash.replace(/^#\/?/, "").split("?");
    const { rackline: made, ...state } = Object.fromEntries(new URLSearchParams(query || ""));
    return { id: views.has(id) ? id : "batch", state, unknown: views.has(id) ? "" : id, made: made || "" };
  }

  /** The address with all values that matter and the version, so that it means the same when defaults change. */
  function lasting() {
    const { id, state } = address();
    const values = shown && shown.view.full ? shown.view.full() : {};
    return new URL(hash(id, { ...state, ...values, rackline: data.get("site").version }), location.href).href;
  }

  /** @param {string} id @param {State} state */
  function hash(id, state) {
    const query = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""))
      .toString()
      .replace(/%2C/g, ",")
      .replace(/%3D/g, "=")
      .replace(/%3A/g, ":")
      .replace(/%2F/g, "/");
    return `#/${id}${query ? `?${query}` : ""}`;
  }

  /** Put a state into the address. @param {State} state @param {boolean} keep  whether Back returns to the old one */
  function remember(state, keep) {
    const next = hash(address().id, state);
    if (next === location.hash) return;
    if (keep) history.pushState(null, "", next);
    else history.replaceState(null, "", next);
  }

  // ---- elements ----------------------------------------------------------------------------------------------------

  /** @param {string} tag @param {Record<string, any>=} attributes @param {...any} children @returns {any} */
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "text") made.textContent = value;
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    made.append(...children.flat(3).filter((/** @type {any} */ child) => child !== null && child !== undefined));
    return made;
  }

  // ---- themes ------------------------------------------------------------------------------------------------------

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /** @type {Set<() => void>} */
  const repaints = new Set();

  /** @returns {"light" | "dark"} */
  function look() {
    const chosen = document.documentElement.dataset.theme;
    return chosen === "dark" || (chosen !== "light" && dark.matches) ? "dark" : "light";
  }

  function repaint() {
    const button = document.querySelector("#theme");
    if (button) button.setAttribute("aria-pressed", String(look() === "dark"));
    repaints.forEach((one) => one());
  }

  function toggleTheme() {
    document.documentElement.dataset.theme = look() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("rackline-theme", document.documentElement.dataset.theme);
    } catch {
      // a browser that keeps nothing still switches
    }
    repaint();
  }

  // ---- views -------------------------------------------------------------------------------------------------------

  /** @type {{id: string, view: any} | null} */
  let shown = null;
  let turn = 0;

  async function show() {
    const { id, state, unknown, made } = address();
    const view = /** @type {View} */ (views.get(id));
    const mine = ++turn;
    const place = /** @type {HTMLElement} */ (document.querySelector("#view"));
    try {
      await load("site");
      await Promise.all((view.data ? view.data(state) : []).map((one) => (typeof one === "string" ? load(one) : one())));
    } catch (error) {
      if (mine === turn) place.replaceChildren(el("p", { class: "problem", role: "alert", text: String(error) }));
      return;
    }
    if (mine !== turn) return;
    if (!shown || shown.id !== id) {
      if (shown && shown.view.leave) shown.view.leave();
      shown = null;
      document.title = `${view.title} · rackline`;
      document.querySelectorAll("nav a").forEach((link) => {
        const here = viewOf(link) === id;
        if (here) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
        if (here && link.scrollIntoView && window.innerWidth < 900) link.scrollIntoView({ block: "nearest", inline: "center" });
      });
      const body = el("div", { class: "body" });
      place.replaceChildren(
        el(
          "header",
          { class: "head" },
          el("h1", { tabindex: "-1", text: view.question }),
          el("p", { class: "answer", id: "answer", "aria-live": "polite" }),
          el("p", { class: "ignored", id: "ignored", role: "status", hidden: true }),
        ),
        body,
      );
      repaints.clear();
      shown = { id, view: view.mount(body, { el, state }) };
      const heading = /** @type {HTMLElement} */ (place.querySelector("h1"));
      if (turn > 1) {
        window.scrollTo(0, 0);
        heading.focus({ preventScroll: true });
      }
    }
    odd = [];
    if (unknown) odd.push(`no view is called “${unknown}” (${[...views.keys()].join(", ")})`);
    if (made && made !== data.get("site").version) odd.push(`it was written by rackline ${made}; this is ${data.get("site").version}, whose numbers may differ`);
    ignored([]);
    shown.view.update(state);
    if (SHARING.includes(id))
      for (const link of document.querySelectorAll("nav a"))
        if (SHARING.includes(viewOf(link))) link.setAttribute("href", hash(viewOf(link), Object.fromEntries(SHARED.filter((key) => key in state).map((key) => [key, state[key]]))));
    place.setAttribute("data-shown", hash(id, state));
  }

  const SHARING = ["batch", "context"]; // views of one pass: a link from one to the other keeps the deployment
  const SHARED = ["s", "m", "k", "l", "q", "e", "b", "c", "on"];
  const viewOf = (/** @type {Element} */ link) => (link.getAttribute("href") || "").replace(/^#\/?/, "").split("?")[0];

  /** @type {string[]} */
  let odd = [];
  /** Name the parts of the address that nothing was made of. @param {string[]} parts */
  function ignored(parts) {
    const place = /** @type {HTMLElement | null} */ (document.querySelector("#ignored"));
    const all = [...odd, ...parts];
    if (!place) return;
    place.hidden = !all.length;
    place.textContent = all.length ? `Not used of this address: ${all.join("; ")}.` : "";
  }

  /** The sentence that answers the question of the view. @param {string} text */
  function answer(text) {
    const place = document.querySelector("#answer");
    if (place && place.textContent !== text) place.textContent = text;
  }

  function start() {
    if (window.self !== window.top) document.documentElement.dataset.framed = ""; // a figure within another page
    for (const [id, view] of Object.entries((data.get("site") || { views: {} }).views)) if (view.verb) rackline.asked.add(id, view);
    const list = /** @type {HTMLElement} */ (document.querySelector("nav ul"));
    if (!list.children.length)
      for (const view of views.values()) list.append(el("li", {}, el("a", { href: `#/${view.id}`, text: view.title })));
    window.addEventListener("hashchange", show);
    window.addEventListener("popstate", show);
    dark.addEventListener("change", repaint);
    const button = document.querySelector("#theme");
    if (button) button.addEventListener("click", toggleTheme);
    const copy = document.querySelector("#copy-link");
    if (copy) copy.addEventListener("click", () => copied(copy, lasting()));
    repaint();
    show();
  }

  /** Copy a text and say so on the button. @param {Element} button @param {string} text */
  async function copied(button, text) {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Press Ctrl+C";
      const area = el("textarea", { "aria-label": "text to copy", class: "unseen" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setTimeout(() => (button.textContent = label), 1500);
  }

  return {
    views,
    data,
    give,
    scenario,
    load,
    address,
    hash,
    remember,
    el,
    look,
    repaints,
    answer,
    ignored,
    lasting,
    copied,
    show,
    start,
    /** @param {View} view */
    view: (view) => views.set(view.id, view),
  };
})()));

document.addEventListener("DOMContentLoaded", rackline.start);
