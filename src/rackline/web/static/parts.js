// @ts-check
// What the views have in common: reasons row by row, claims of the lecture, the same question elsewhere.
"use strict";

(() => {
  const { el, text } = rackline;

  /** @param {string} title @param {...any} children */
  const section = (title, ...children) => el("section", {}, el("h2", { text: title }), ...children);

  /** A table whose rows are replaced. @param {{name: string, kind?: string}[]} columns @param {string} label */
  function table(columns, label) {
    const body = el("tbody");
    const element = el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.kind ? "number" : null, text: column.name })))),
        body,
      ),
    );
    return {
      element,
      /** @param {any[][]} rows */
      fill: (rows) =>
        body.replaceChildren(
          ...rows.map((row) =>
            el(
              "tr",
              {},
              row.map((value, index) => {
                const kind = columns[index] && columns[index].kind;
                const cell = el(index ? "td" : "th", { scope: index ? null : "row", class: kind ? "number" : null });
                if (value instanceof Node) cell.append(value);
                else cell.textContent = typeof value === "number" && kind ? (value || kind !== "seconds" ? text.of(kind, value) : "–") : String(value ?? "–");
                return cell;
              }),
            ),
          ),
        ),
    };
  }

  /** The rows of a pass, and what each is for. */
  function why() {
    const columns = [
      { name: "operation" },
      { name: "compute", kind: "seconds" },
      { name: "HBM", kind: "seconds" },
      { name: "links", kind: "seconds" },
      { name: "fixed", kind: "seconds" },
      { name: "rest", kind: "seconds" },
      { name: "total", kind: "seconds" },
      { name: "share", kind: "share" },
      { name: "binds" },
    ];
    const made = table(columns, "The pass row by row");
    const element = section("Why: the pass, row by row", made.element);
    let last = "";
    return {
      element,
      /** @param {any} found  breakdown of a pass */
      update(found) {
        const most = Math.max(...found.rows.map((/** @type {any} */ row) => row.seconds));
        const total = found.rows.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.seconds, 0) || 1;
        const key = found.rows.map((/** @type {any} */ row) => row.seconds).join();
        if (key === last) return;
        last = key;
        made.fill(
          found.rows.map((/** @type {any} */ row) => {
            const part = row.seconds / total;
            const share = el("span", { class: "bar" }, el("span", { text: part < 1e-3 ? "< 0.1 %" : `${text.round(100 * part, 2)} %` }));
            share.style.setProperty("--part", `${(100 * row.seconds) / most}%`);
            return [el("span", { title: row.formula, text: row.name.replace(/_/g, " ") }), row.compute, row.hbm, Math.max(row.up, row.out), row.fixed, row.rest, row.seconds, share, row.binds];
          }),
        );
      },
    };
  }

  const MARKS = /** @type {Record<string, string>} */ ({ holds: "✓", "by definition": "≡", "does not hold": "✗", "no number": "·", "not computed": "·" });

  /** A verdict as a badge. @param {string} verdict */
  const badge = (verdict) => el("span", { class: `badge verdict-${verdict.split(" ").slice(0, 3).join("-")}` }, `${MARKS[verdict] || "◐"} ${verdict}`);

  /** One claim. @param {any} claim @param {boolean=} linked */
  function claimCard(claim, linked) {
    const to = linked ? (rackline.data.get("site").links || {})[claim.id] : null;
    return el(
      "details",
      { class: "claim", id: `claim-${claim.id}` },
      el("summary", {}, el("span", { class: "id", text: claim.id }), el("span", { class: "said", text: claim.said }), badge(claim.verdict)),
      el(
        "div",
        { class: "more" },
        claim.formula ? el("p", {}, el("code", { text: claim.formula })) : null,
        claim.quoted ? el("p", { text: `Quoted: ${claim.quoted}` }) : null,
        claim.computed.length
          ? el("ul", {}, claim.computed.map((/** @type {any} */ one) => el("li", { text: `${one.mark ? `${one.mark} ` : ""}${one.text}` })))
          : null,
        claim.condition ? el("p", { text: `Holds if ${claim.condition}.` }) : null,
        claim.reason ? el("p", { text: claim.reason }) : null,
        el("p", { class: "quiet", text: [claim.at ? `at ${claim.at}` : "", claim.speaker ? `said by ${{ RP: "Reiner Pope", DP: "Dwarkesh Patel", both: "both" }[/** @type {string} */ (claim.speaker)] || claim.speaker}` : ""].filter(Boolean).join(", ") }),
        to ? el("p", {}, el("a", { href: to, text: "See it move, with the values that it speaks of" })) : null,
      ),
    );
  }

  /** The lecture's claims of a view, loaded when it is idle. @param {string[]} ids */
  function claims(ids) {
    const place = el("div", { class: "claims" });
    const element = section("What the lecture says", place);
    rackline.load("ledger").then(
      (ledger) => place.replaceChildren(...ids.filter((id) => ledger.claims[id]).map((id) => claimCard(ledger.claims[id], true))),
      () => place.replaceChildren(el("p", { text: "The ledger did not load." })),
    );
    return element;
  }

  const CASES = {
    title: "Published measurements of this model",
    data: "parity",
    columns: [{ name: "case" }, { name: "what" }, { name: "measured" }, { name: "predicted" }, { name: "predicted / measured", kind: "number" }, { name: "source" }],
    row(/** @type {any} */ one) {
      const unit = one.metric.includes("tokens_per_s") ? "count" : "seconds";
      return [`${one.chips} ${one.chip}, ${one.stack} ${one.version}`.trim(), one.metric.replace(/_s$/, "").replace(/_/g, " "), text.of(unit, one.measured), text.of(unit, one.predicted), one.predicted / one.measured, one.source];
    },
  };
  const PRICES = {
    title: "What hosts of this model ask",
    data: "asked-prices",
    columns: [{ name: "host" }, { name: "date" }, { name: "million input tokens", kind: "usd" }, { name: "from its cache", kind: "usd" }, { name: "million output tokens", kind: "usd" }],
    row: (/** @type {any} */ one) => [one.provider, one.date, one.input, one.cached, one.output],
  };
  const BESIDE = /** @type {Record<string, any>} */ ({
    plan: { ...CASES, of: (/** @type {any} */ one) => one.kind !== "train" },
    simulate: { ...CASES, of: (/** @type {any} */ one) => one.kind !== "train" },
    train: { ...CASES, of: (/** @type {any} */ one) => one.kind === "train" },
    price: { ...PRICES, of: () => true },
  });

  /** What was published of a model beside what is computed, loaded when first shown. @param {string} verb */
  function measured(verb) {
    const shown = BESIDE[verb];
    const made = shown && table(shown.columns, shown.title);
    const element = shown ? section(shown.title, made.element) : el("section");
    element.hidden = true;
    return {
      element,
      /** @param {string} model */
      async update(model) {
        if (!shown) return;
        const { rows } = await rackline.load(shown.data).catch(() => ({ rows: [] }));
        const found = rows.filter((/** @type {any} */ one) => one.model === model.toLowerCase() && shown.of(one));
        element.hidden = !found.length;
        made.fill(found.map(shown.row));
      },
    };
  }

  /** A text to be copied, such as a manifest. @param {string} title @param {string} content */
  function document_(title, content) {
    const copy = el("button", { type: "button", text: "Copy" });
    copy.addEventListener("click", () => rackline.copied(copy, content));
    const name = title[0].toUpperCase() + title.slice(1);
    return el("details", { class: "rows" }, el("summary", { text: name }), el("div", { class: "code" }, copy, el("pre", { tabindex: 0, role: "region", "aria-label": name }, el("code", { text: content }))));
  }

  /** The same question on the command line and in Python. @param {string[]=} titles  where they answer something else */
  function commands(titles) {
    /** @type {HTMLElement[]} */
    const codes = [el("code"), el("code")];
    const blocks = (titles || ["Command line", "Python"]).map((name, index) => {
      const copy = el("button", { type: "button", text: "Copy" });
      copy.addEventListener("click", () => rackline.copied(copy, codes[index].textContent || ""));
      return el("div", { class: "code" }, el("h3", { text: name }), copy, el("pre", { tabindex: 0, role: "region", "aria-label": name }, codes[index]));
    });
    return {
      element: section("The same elsewhere", el("div", { class: "pair" }, blocks)),
      /** @param {string} command @param {string} python */
      update(command, python) {
        codes[0].textContent = command;
        codes[1].textContent = python;
      },
    };
  }

  /** A question in both spellings. @param {string} verb @param {string[]} positional @param {Record<string, string | number>} options */
  function spelled(verb, positional, options) {
    const given = Object.entries(options).filter(([, value]) => value !== "" && value !== undefined);
    const bare = (/** @type {any} */ value) => (/^[\w.,=/:@%+-]+$/.test(String(value)) ? String(value) : `'${value}'`);
    const quoted = (/** @type {any} */ value) => (typeof value === "number" ? String(value) : JSON.stringify(value));
    return {
      command: [`rackline ${verb}`, ...positional.map(bare), ...given.map(([name, value]) => `--${name.replace(/_/g, "-")} ${bare(value)}`)].join(" "),
      python: `import rackline as rl\n\nrl.${verb.replace(/-/g, "_")}(${[...positional.map(quoted), ...given.map(([name, value]) => `${name.replace(/-/g, "_")}=${quoted(value)}`)].join(", ")})`,
    };
  }

  /** Why a server refused, in a line. @param {any} problem */
  const refusal = (problem) => (problem.what ? `${problem.what}: got ${String(problem.given).replace(/^'(.*)'$/, "$1")}, allowed: ${problem.allowed}${problem.nearest ? `; nearest: ${problem.nearest}` : ""}` : problem.detail || problem.title);

  /** Controls beside figures. @param {any} form @param {any[]} figures */
  const bench = (form, figures) => el("div", { class: "bench" }, form, el("div", { class: "figures" }, figures));

  /** A table of texts. @param {any} one  title, columns, rows and caption, as the library writes them */
  function sheet(one) {
    const kind = (/** @type {number} */ index) => (one.columns[index] && one.columns[index].number ? "number" : one.rows.some((/** @type {string[]} */ row) => (row[index] || "").length > 60) ? "long" : null);
    return el(
      "div",
      { class: "sheet" },
      one.title ? el("h3", { text: one.title }) : null,
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": one.title || one.name },
        el(
          "table",
          {},
          one.columns.some((/** @type {any} */ column) => column.title) ? el("thead", {}, el("tr", {}, one.columns.map((/** @type {any} */ column, /** @type {number} */ index) => el(column.title ? "th" : "td", { scope: column.title ? "col" : null, class: kind(index), title: column.note || null, text: column.title })))) : null,
          el("tbody", {}, one.rows.filter((/** @type {string[]} */ row) => row.length).map((/** @type {string[]} */ row) => el("tr", {}, row.map((text, index) => el(index ? "td" : "th", { scope: index ? null : "row", class: [kind(index), /[━●┃]/.test(text) ? "drawn" : ""].filter(Boolean).join(" ") || null }, ...linked(text)))))),
        ),
      ),
      one.caption ? el("p", { class: "quiet", text: one.caption }) : null,
    );
  }

  /** A text whose addresses are links. @param {string} text */
  const linked = (text) => text.split(/(https?:\/\/[^\s,;)]+)/).map((part, index) => (index % 2 ? el("a", { href: part, rel: "noreferrer", text: part }) : part)).filter(Boolean);

  /** What the command prints, in its parts. @param {any[]} list */
  const printed = (list) =>
    list.map((one) => {
      if (one.kind === "table") return sheet(one);
      if (one.kind === "box") return el("div", { class: "boxed" }, one.title ? el("h3", { text: one.title }) : null, one.lines.map((/** @type {string} */ line) => el("p", { text: line })));
      if (one.kind === "lines") return el("pre", { tabindex: 0, role: "region", "aria-label": "Part of the answer" }, one.text);
      return el("p", { class: "said" }, ...linked(one.text));
    });

  const NUMBERS = [["compute", "compute"], ["hbm", "HBM"], ["link", "links"], ["fixed", "fixed"], ["rest", "rest"]];
  let opened = 0;

  /** Rows that open to formula, inputs, source and error; a number opens to its origin. @param {any[]} rows */
  function origins(rows) {
    const body = el("tbody");
    for (const row of rows) {
      const id = `origin-${++opened}`;
      const more = el("div", { class: "more" });
      const line = el("tr", { id, hidden: true }, el("td", { colspan: NUMBERS.length + 4 }, more));
      let open = "";
      /** @type {any[]} */
      const buttons = [];
      const show = (/** @type {string} */ what) => {
        open = open === what ? "" : what;
        line.hidden = !open;
        for (const one of buttons) one.setAttribute("aria-expanded", String(one.dataset.of === open));
        const chosen = open === "all" ? NUMBERS.filter(([key]) => row.numbers[key]) : NUMBERS.filter(([key]) => key === open);
        more.replaceChildren(
          el("p", {}, el("code", { text: row.formula })),
          ...chosen.map(([key, name]) => el("div", {}, el("h3", { text: `${name}: ${text.of("seconds", row.numbers[key].seconds)}` }), row.numbers[key].lines.map((/** @type {string} */ one) => el("p", {}, ...linked(one.replace(/(\d) us\b/g, "$1 µs")))))),
          el("p", { class: "quiet", text: `Timed by ${row.timed_by}.` }),
        );
      };
      const button = (/** @type {string} */ what, /** @type {string} */ shown, /** @type {string} */ label) => {
        const made = el("button", { type: "button", class: "origin", "aria-expanded": "false", "aria-controls": id, "aria-label": label, "data-of": what, text: shown, onclick: () => show(what) });
        buttons.push(made);
        return made;
      };
      const name = row.name.replace(/_/g, " ");
      body.append(
        el(
          "tr",
          {},
          el("th", { scope: "row" }, button("all", name, `${name}: formula, inputs, sources`)),
          NUMBERS.map(([key, title]) => el("td", { class: "number" }, row.numbers[key] ? button(key, text.of("seconds", row.numbers[key].seconds), `${name}, ${title} ${text.of("seconds", row.numbers[key].seconds)}: where it comes from`) : "–")),
          el("td", { class: "number", text: text.of("seconds", row.seconds) }),
          el("td", { class: "number", text: `${text.round(100 * row.share, 2)} %` }),
          el("td", { class: "number", text: row.ideal_s === null ? "–" : text.of("seconds", row.ideal_s) }),
        ),
        line,
      );
    }
    const heads = ["operation", ...NUMBERS.map(([, name]) => name), "total", "share", "ideal"];
    return section(
      "Why: row by row",
      el("p", { class: "quiet", text: "A row opens to its formula, its inputs, whose numbers time it and how far these were off; a number opens to where it comes from." }),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The pass row by row" }, el("table", { class: "origins" }, el("thead", {}, el("tr", {}, heads.map((one, index) => el("th", { scope: "col", class: index ? "number" : null, text: one })))), body)),
    );
  }

  Object.assign(rackline, { parts: { printed, origins, section, table, why, claims, claimCard, badge, commands, measured, document: document_, refusal, spelled, bench } });
})();
