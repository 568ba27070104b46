// @ts-check
// A figure: the library's specification, drawn by Vega without eval; rows and ranges are put in frame by frame.
"use strict";

(() => {
  const { el, text } = rackline;

  /** @typedef {{[name: string]: any}} Row */

  const NARROW = 420; // pixels
  const BESIDE = 260; // labels of rows take up to this much of the width of a legend [pixels]
  const LEGEND = 90; // of the width that the labels of a legend leave free [pixels]
  const ENTRY = 250; // pixels
  const PANEL_AXIS = 105; // beside panels that stand above each other [pixels]
  const LABEL = 0.4; // of a narrow figure's width that labels of an axis take at most

  /** The same with so many entries of a legend beside each other at most. @param {any} node @param {number} most @returns {any} */
  function stacked(node, most) {
    if (Array.isArray(node)) return node.map((one) => stacked(one, most));
    if (!node || typeof node !== "object") return node;
    const legend = (/** @type {any} */ value) => (most === 1 || value.columns > most ? { ...value, columns: most } : value);
    return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, key === "values" ? value : key === "legend" && value ? legend(value) : stacked(value, most)]));
  }

  const LINES = "split(datum.label, ', ')"; // the name of a row in lines, such as "time to first token, p50"

  /** The same with names of rows in lines, none of them longer than this. @param {any} node @param {number} most [pixels] @returns {any} */
  function shortened(node, most) {
    if (Array.isArray(node)) return node.map((one) => shortened(one, most));
    if (!node || typeof node !== "object") return node;
    const lined = (/** @type {string} */ key, /** @type {any} */ value) =>
      key === "y" && value && ["nominal", "ordinal"].includes(value.type) && value.axis !== null ? { ...value, axis: { labelExpr: LINES, ...value.axis } } : value;
    return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, key === "values" ? value : key === "labelLimit" ? Math.min(value, most) : shortened(lined(key, value), most)]));
  }

  const LETTER = 6.8; // mean width of a letter of a note [pixels]

  /** The same with notes that stay within the frame and legends that are cut before they leave it. @param {any} node @param {number} width @returns {any} */
  function beside(node, width) {
    if (Array.isArray(node)) return node.map((one) => beside(one, width));
    if (!node || typeof node !== "object") return node;
    const found = Object.fromEntries(Object.entries(node).map(([key, value]) => [key, key === "values" ? value : key === "legend" && value && value.labelLimit ? { ...value, labelLimit: Math.min(value.labelLimit, width - LEGEND) } : beside(value, width)]));
    const { mark, encoding } = found;
    const noted = mark && mark.type === "text" && mark.dx && encoding && encoding.x && "datum" in encoding.x && encoding.text && encoding.text.value;
    if (noted) {
      const at = `scale('x', ${Number(encoding.x.datum)})`;
      const long = LETTER * encoding.text.value.length;
      mark.dx = { expr: mark.align === "left" ? `min(${mark.dx}, width - ${long} - ${at})` : `max(${mark.dx}, ${long} - ${at})` };
    }
    return found;
  }

  /** Bring a figure's specification to what the page draws: its title stands in HTML, its width follows the page. */
  function dressed(/** @type {any} */ spec, /** @type {string} */ look, /** @type {number} */ width, /** @type {number} */ height, /** @type {boolean=} */ rows) {
    const { title, description, config, $schema, ...rest } = spec;
    const panels = rest.vconcat && !rest.hconcat;
    if (panels) rest.vconcat = rest.vconcat.map((/** @type {any} */ one) => ({ ...one, width: Math.max(width - PANEL_AXIS, 160) }));
    const single = !["hconcat", "vconcat", "concat", "facet", "repeat"].some((key) => key in rest);
    const narrow = width < NARROW;
    const theme = rackline.data.get("site").themes[look];
    const legend = narrow ? { ...theme.legend, layout: { top: { direction: "vertical", anchor: "start" } }, labelLimit: width - 40 } : theme.legend;
    const axis = narrow ? { ...theme.axis, labelLimit: LABEL * width } : theme.axis;
    const bounded = beside(rest, width);
    const fitted = stacked(bounded, Math.max(Math.floor((width - BESIDE) / ENTRY), 1));
    return {
      ...(narrow ? shortened(fitted, LABEL * width) : fitted),
      // where it is narrow, legends and labels take what height they need, and the marks keep theirs
      ...(single ? { width, height, autosize: { type: narrow || rows ? "fit-x" : "fit", contains: "padding" } } : {}),
      config: { ...theme, axis, legend, padding: { left: 2, right: 14, top: 6, bottom: 2 }, background: null, aria: false },
    };
  }

  class Figure {
    /** @param {{title: string, name: string, spec: any, height?: number, measures?: [string, string, string][],
     *   hover?: [string, string, string, string], fixed?: boolean, panels?: boolean, rows?: boolean}} options  measures: field, title and kind of the columns of its table */
    constructor(options) {
      this.options = options;
      /** @type {Row} */
      this.rows = {};
      /** @type {Row} */
      this.signals = {};
      this.width = 0;
      this.named = "";
      this.description = options.spec.description || options.title;
      this.canvas = el("div", { "aria-hidden": "true" });
      this.place = el("div", { class: "drawing", role: "img", "aria-label": this.description }, this.canvas);
      if (options.fixed) this.place.classList.add("across");
      if (!options.fixed) this.place.style.height = `${options.height || 340}px`;
      this.legend = el("div", { class: "legend", "aria-hidden": "true" });
      this.table = el("details", { class: "data" }, el("summary", { text: "Data" }));
      this.table.addEventListener("toggle", () => this.fillTable());
      this.note = el("p", { class: "note" });
      this.element = el(
        "figure",
        { class: "figure", "data-figure": options.name },
        el("figcaption", {}, el("span", { class: "title", text: options.title }), this.tools()),
        this.legend,
        this.place,
        this.note,
        this.table,
      );
      this.repaint = () => this.embed();
      rackline.repaints.add(this.repaint);
      rackline.drawn.set(options.name, this);
      this.watch = new ResizeObserver(() => this.resize());
      this.watch.observe(this.place);
    }

    tools() {
      const items = [
        ["PNG", () => this.image("png")],
        ["SVG", () => this.image("svg")],
        ["CSV", () => save(`${this.options.name}.csv`, this.csv(), "text/csv")],
        ["JSON", () => save(`${this.options.name}.json`, this.json(), "application/json")],
      ];
      return el(
        "span",
        { class: "tools", role: "group", "aria-label": `Save “${this.options.title}” as` },
        items.map(([name, act]) => el("button", { type: "button", onclick: act, text: name })),
      );
    }

    /** New rows, ranges and a text for those who do not see it. @param {Row} rows @param {Row=} signals @param {string=} description */
    update(rows, signals, description) {
      this.rows = rows;
      this.signals = signals || {};
      if (description && description !== this.description) {
        this.description = description;
        this.place.setAttribute("aria-label", description);
      }
      if (this.view) this.push();
      else this.embed();
      if (this.table.open) this.fillTable();
    }

    /** Another specification in the same place. @param {any} spec */
    redraw(spec) {
      this.options.spec = spec;
      this.description = spec.description || this.options.title;
      this.place.setAttribute("aria-label", this.description);
      this.embed();
      if (this.table.open) this.fillTable();
    }

    /** @param {any=} into  another view than the one on the page */
    push(into) {
      const view = into || /** @type {any} */ (this.view);
      for (const [name, value] of Object.entries(this.signals)) view.signal(name, value);
      for (const [name, rows] of Object.entries(this.rows))
        view.change(name, vega.changeset().remove(() => true).insert(rows.map((/** @type {Row} */ row) => ({ ...row }))));
      view.run();
    }

    size() {
      const box = this.place.getBoundingClientRect();
      return [Math.max(Math.floor(box.width), 200), this.options.height || 340];
    }

    embed() {
      if (!this.place.isConnected) return requestAnimationFrame(() => this.place.isConnected && this.embed());
      const [width, height] = this.size();
      if (this.options.panels) this.place.style.height = "auto";
      else if (!this.options.fixed) this.place.style.height = width < NARROW || this.options.rows ? "auto" : `${height}px`;
      const spec = dressed(this.options.spec, rackline.look(), width, height, this.options.rows);
      const compiled = vegaLite.compile(spec, { logger: quiet }).spec;
      if (this.view) this.view.finalize();
      this.canvas.replaceChildren();
      this.view = new vega.View(vega.parse(compiled, undefined, { ast: true }), {
        renderer: "svg",
        container: this.canvas,
        expr: vega.expressionInterpreter,
        hover: true,
        tooltip: tooltip,
        logger: quiet,
      });
      this.width = width;
      this.push();
      if (this.options.hover) this.listen();
      return undefined;
    }

    /** Numbers of all series beside the pointer. */
    listen() {
      const [x, xKind, y, yKind] = /** @type {string[]} */ (this.options.hover);
      this.view.addEventListener("mousemove", (/** @type {MouseEvent} */ event) => {
        const [left] = this.view.origin();
        const at = this.view.scale("x").invert(event.clientX - this.place.getBoundingClientRect().left - left);
        /** @type {Map<string, Row>} */
        const nearest = new Map();
        const far = (/** @type {Row} */ row) => Math.abs(Math.log(row[x] / at));
        for (const row of this.all()) {
          const best = nearest.get(row.series);
          if (!best || far(row) < far(best)) nearest.set(row.series, row);
        }
        const rows = [...nearest.values()];
        if (!rows.length || !(at > 0)) return tooltip(null, event, null, null);
        return tooltip(null, event, null, {
          [this.columns().find(([name]) => name === x)?.[1] || x]: text.of(xKind, rows[0][x]),
          ...Object.fromEntries(rows.map((row) => [row.series, text.of(yKind, row[y])])),
        });
      });
      this.view.addEventListener("mouseout", (/** @type {MouseEvent} */ event) => tooltip(null, event, null, null));
    }

    resize() {
      if (!this.view) return;
      const [width] = this.size();
      if (width === this.width) return;
      this.width = width;
      if (this.options.panels) this.embed();
      else if (!this.options.fixed) this.view.width(width).run();
    }

    /** Names of the series beside their colours. @param {{name: string, place: number, dashed?: boolean}[]} series */
    name(series) {
      const key = series.map((one) => `${one.place}${one.dashed ? "-" : ""}${one.name}`).join("|");
      if (this.named === key) return;
      this.named = key;
      this.legend.replaceChildren(
        ...series.map((one) => el("span", { class: `key colour-${one.place}${one.dashed ? " dashed" : ""}` }, el("i"), one.name)),
      );
    }

    /** All rows of the figure. @returns {Row[]} */
    all() {
      const { data, layer, hconcat, vconcat } = this.options.spec;
      const parts = [{ data }, ...(layer || hconcat || vconcat || [])];
      const own = parts.map((/** @type {any} */ part) => part.data && part.data.values).find((/** @type {any} */ rows) => rows && rows.length);
      return this.rows.rows || Object.values(this.rows)[0] || own || [];
    }

    columns() {
      const measures = this.options.measures;
      if (measures) return measures;
      const first = this.all()[0] || {};
      return Object.keys(first).map((name) => /** @type {[string, string, string]} */ ([name, name, ""]));
    }

    fillTable() {
      if (!this.table.open) return;
      const columns = this.columns();
      const rows = this.all().slice(0, 400);
      const found = el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `Data of “${this.options.title}”` },
        el(
          "table",
          {},
          el("thead", {}, el("tr", {}, columns.map(([, title]) => el("th", { scope: "col", text: title })))),
          el(
            "tbody",
            {},
            rows.map((row) =>
              el("tr", {}, columns.map(([name, , kind]) => el("td", { text: typeof row[name] === "number" ? (kind ? text.of(kind, row[name]) : String(row[name])) : String(row[name] ?? "") }))),
            ),
          ),
        ),
      );
      const old = this.table.querySelector(".scroll");
      if (old) old.replaceWith(found);
      else this.table.append(found);
    }

    csv() {
      const columns = this.columns().map(([name]) => name);
      const quoted = (/** @type {any} */ value) => (/[",\n]/.test(String(value ?? "")) ? `"${String(value).replace(/"/g, '""')}"` : String(value ?? ""));
      return [columns.join(","), ...this.all().map((row) => columns.map((name) => quoted(row[name])).join(","))].join("\n") + "\n";
    }

    json() {
      const spec = JSON.parse(JSON.stringify(this.options.spec));
      const fill = (/** @type {any} */ node) => {
        if (node && typeof node === "object") {
          if (node.data && node.data.name && this.rows[node.data.name]) node.data = { values: this.rows[node.data.name] };
          Object.values(node).forEach(fill);
        }
      };
      fill(spec);
      for (const one of spec.params || []) if (one.name in this.signals) one.value = this.signals[one.name];
      const { question, origin } = this.origin();
      return JSON.stringify({ ...spec, title: this.titled(), usermeta: { question, origin }, config: rackline.data.get("site").themes[rackline.look()] }, null, 1);
    }

    /** The question that the figure belongs to, and what drew it when and from which address. */
    origin() {
      const heading = document.querySelector("#view h1");
      const day = new Date().toISOString().slice(0, 10);
      return { question: heading ? heading.textContent : "", origin: `rackline ${rackline.data.get("site").version}, ${day}, ${decodeURIComponent(rackline.address().id + location.hash.replace(/^[^?]*/, ""))}` };
    }

    /** The title of a saved figure. */
    titled() {
      const { question, origin } = this.origin();
      const series = [...this.legend.children].map((one) => one.textContent).join(", ");
      return { text: this.options.title, subtitle: [question, ...(series ? [series] : []), origin], anchor: "start" };
    }

    /** @param {"png" | "svg"} kind */
    async image(kind) {
      if (!this.view) return;
      const [width, height] = this.size();
      const spec = { ...dressed(this.options.spec, rackline.look(), width, height, this.options.rows), title: this.titled(), background: rackline.data.get("site").themes[rackline.look()].background };
      const view = new vega.View(vega.parse(vegaLite.compile(spec, { logger: quiet }).spec, undefined, { ast: true }), { renderer: "none", expr: vega.expressionInterpreter, logger: quiet });
      this.push(view);
      link(`${this.options.name}.${kind}`, await view.toImageURL(kind, 2));
      view.finalize();
    }

    leave() {
      rackline.repaints.delete(this.repaint);
      rackline.drawn.delete(this.options.name);
      this.watch.disconnect();
      if (this.view) this.view.finalize();
    }
  }

  const quiet = { level: () => quiet, error: (/** @type {any[]} */ ...given) => console.error(...given), warn: () => quiet, info: () => quiet, debug: () => quiet };

  const tip = el("div", { id: "tip", role: "presentation", hidden: true });

  /** What is shown when the pointer rests on a mark. */
  function tooltip(/** @type {any} */ _handler, /** @type {any} */ event, /** @type {any} */ _item, /** @type {any} */ value) {
    if (!tip.isConnected) document.body.append(tip);
    if (value === null || value === undefined || value === "") {
      tip.hidden = true;
      return;
    }
    const rows = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
    tip.replaceChildren(...rows.map(([name, one]) => el("div", {}, name ? el("b", { text: name }) : null, el("span", { text: String(one) }))));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > window.innerWidth ? event.clientX - box.width - 10 : event.clientX + 14;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.max(Math.min(event.clientY + 14, window.innerHeight - box.height - 6), 4)}px`;
  }

  /** @param {string} name @param {string} address */
  function link(name, address) {
    const made = el("a", { href: address, download: name });
    document.body.append(made);
    made.click();
    made.remove();
  }

  /** @param {string} name @param {string} content @param {string} type */
  function save(name, content, type) {
    const address = URL.createObjectURL(new Blob([content], { type }));
    link(name, address);
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  Object.assign(rackline, { Figure, save, drawn: /** @type {Map<string, Figure>} */ (new Map()) });
})();
