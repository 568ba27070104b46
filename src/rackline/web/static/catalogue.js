// @ts-check
// Catalogue: models, chips, clusters and memory tiers; one opens to all its numbers, each with who says so.
"use strict";

(() => {
  const { el, text, parts, controls } = rackline;
  const KINDS = { models: "Models", chips: "Chips", clusters: "Clusters", memory: "Memory tiers" };
  const fileOf = (/** @type {any} */ state) => `catalogue-${state.k in KINDS ? state.k : "models"}`;

  rackline.view({
    id: "catalogue",
    title: "Catalogue",
    question: "Which models, chips and clusters are known, and who says so?",
    data: (state) => [fileOf(state)],
    mount(place) {
      const kind = controls.select({ key: "k", label: "What", value: "models", options: Object.entries(KINDS).map(([value, label]) => ({ value, label })) }, () => {
        name.set("");
        go();
      });
      const words = controls.entry({ key: "q", label: "Words", value: "" }, () => go());
      const name = controls.entry({ key: "n", label: "Name", value: "", names: async () => Object.keys(rackline.data.get(fileOf(rackline.address().state)).records) }, () => go());
      const list = [kind, words, name];
      const shown = el("div", { class: "printed" });
      const commands = parts.commands();
      place.append(el("div", { class: "bench" }, controls.form(list), shown), commands.element);

      /** Another kind is another file, so the whole view is shown again. */
      function go() {
        rackline.remember(Object.fromEntries(list.map((one) => [one.key, one.write()])), true);
        rackline.show();
      }

      function draw() {
        const data = rackline.data.get(fileOf({ k: kind.get() }));
        const record = data.records[name.get()];
        const table = data.list.find((/** @type {any} */ one) => one.kind === "table");
        const wanted = words.get().toLowerCase().split(/\s+/).filter(Boolean);
        const rows = table.rows.filter((/** @type {string[]} */ row) => wanted.every((/** @type {string} */ word) => row.join(" ").toLowerCase().includes(word)));
        if (record) {
          shown.replaceChildren(el("p", {}, el("button", { type: "button", text: `← All ${KINDS[/** @type {keyof KINDS} */ (kind.get())].toLowerCase()}`, onclick: () => (name.set(""), go()) })), el("h2", { text: name.get() }), ...parts.printed(record));
        } else {
          shown.replaceChildren(el("h2", { text: `All ${KINDS[/** @type {keyof KINDS} */ (kind.get())].toLowerCase()}` }), ...parts.printed(data.list.map((/** @type {any} */ one) => (one === table ? { ...table, rows } : one))));
          for (const head of shown.querySelectorAll("tbody th")) {
            const of = head.textContent || "";
            if (of in data.records) head.replaceChildren(el("button", { type: "button", class: "origin", text: of, onclick: () => (name.set(of), go()) }));
          }
        }
        const missing = name.get() && !record ? `No ${kind.get()} entry is called “${name.get()}”. ` : "";
        rackline.answer(`${missing}${record ? `${name.get()}: every number with its evidence and source.` : `${text.whole(rows.length)} of ${text.whole(table.rows.length)} ${KINDS[/** @type {keyof KINDS} */ (kind.get())].toLowerCase()}. A name opens all numbers with their sources.`}`);
        const { command, python } = parts.spelled(kind.get(), record ? [name.get()] : [], {});
        commands.update(command, python);
        place.setAttribute("data-ready", "");
      }

      return controls.board(list, [], draw);
    },
  });
})();
