// @ts-check
// Guide: the lecture step by step beside a figure. The reader guesses, then the figure draws itself and says the number.
"use strict";

(() => {
  const { el, text, parts, controls } = rackline;
  const DRAWN_MS = 900; // a curve takes this long to draw itself [ms]
  const CLOSE = 1.1; // a guess within this factor is called close
  const LARGE = 1e6; // from here on a count is written with a prefix
  const NARROW = 900; // figures stand below the question [pixels]

  /** A figure of a chapter, as the library computed it.
   * @typedef {{title: string, of: string, form: "lines" | "rows" | "slots", spec: any, kinds: {x: string, y: string}, titles: {x: string, y: string},
   *   log: string, least: number | null, places: number[], curves: Record<string, number[]>, slots: [number, string, number, number, number][]}} Drawing
   * @typedef {{x: number, y: number, series: string}} Mark */

  const scale = (/** @type {Drawing} */ drawing, /** @type {string} */ axis) => (drawing.log.includes(axis) ? { to: Math.log, from: Math.exp } : { to: Number, from: Number });

  /** The value of a curve at a place, along straight lines on the figure's axes. @param {Drawing} drawing @param {string} name @param {number} x */
  function at(drawing, name, x) {
    const [along, up, places] = [scale(drawing, "x"), scale(drawing, "y"), drawing.places];
    const after = Math.min(Math.max(places.findIndex((one) => one >= x), 1), places.length - 1);
    const [left, right] = [after - 1, after].map((index) => along.to(places[index]));
    const [low, high] = [after - 1, after].map((index) => up.to(drawing.curves[name][index]));
    return up.from(low + ((high - low) * (along.to(x) - left)) / (right - left));
  }

  /** The first place at which a curve comes to another one. @param {Drawing} drawing @param {string} name @param {string} other */
  function meeting(drawing, name, other) {
    const [along, up] = [scale(drawing, "x"), scale(drawing, "y")];
    const gaps = drawing.places.map((_, index) => up.to(drawing.curves[name][index]) - up.to(drawing.curves[other][index]));
    const after = gaps.findIndex((gap, index) => index > 0 && gaps[index - 1] !== 0 && Math.sign(gap) !== Math.sign(gaps[index - 1]));
    const [left, right] = [after - 1, after].map((index) => along.to(drawing.places[index]));
    return along.from(left + ((right - left) * gaps[after - 1]) / (gaps[after - 1] - gaps[after]));
  }

  /** The place of the least value of a curve: where the slopes beside its lowest point turn. @param {Drawing} drawing @param {string} name */
  function lowest(drawing, name) {
    const [along, up] = [scale(drawing, "x"), scale(drawing, "y")];
    const [x, y] = [drawing.places.map(along.to), drawing.curves[name].map(up.to)];
    const middle = Math.min(Math.max(y.indexOf(Math.min(...y)), 1), y.length - 2);
    const [left, right] = [x[middle] - x[middle - 1], x[middle + 1] - x[middle]];
    const [falls, rises] = [(y[middle] - y[middle - 1]) / left, (y[middle + 1] - y[middle]) / right];
    return along.from(x[middle] - left / 2 - (((left + right) / 2) * falls) / (rises - falls));
  }

  /** The points of a step in its figure. @param {any} step @param {Drawing} drawing @returns {Mark[]} */
  const marks = (step, drawing) =>
    step.marks.map((/** @type {any} */ mark) => {
      if (drawing.form === "rows") return { x: 0, y: drawing.curves[mark.on][0], series: mark.on };
      const x = mark.meets ? meeting(drawing, mark.on, mark.meets) : mark.least ? lowest(drawing, mark.least) : mark.at;
      return { x, y: at(drawing, mark.on, x), series: mark.on };
    });

  /** The number of a step, read from the marks of its figure. @param {any} step @param {Drawing} drawing */
  function number(step, drawing) {
    if (step.reads === "idle") {
      const works = drawing.slots.reduce((sum, slot) => sum + slot[4] - slot[3], 0);
      return 1 - works / (Math.max(...drawing.slots.map((slot) => slot[4])) * new Set(drawing.slots.map((slot) => slot[0])).size);
    }
    const [first, second] = marks(step, drawing);
    return step.reads === "x" ? first.x : step.reads === "y" ? first.y : first.y / second.y;
  }

  /** What is drawn of a figure: rows in the order in which they appear along a field, axes, names.
   * @param {any} step @param {Drawing} drawing */
  function drawn(step, drawing) {
    const marked = step.marks.map((/** @type {any} */ one) => one.on);
    if (drawing.form === "slots") {
      const rows = drawing.slots.map(([stage, kind, micro, start, x2]) => ({ stage, kind, text: `micro-batch ${micro + 1}`, start, x2 }));
      return { rows, along: "start", x: rackline.axis([0, ...rows.map((row) => row.x2)], { zero: true, most: 8 }), y: null, legend: [] };
    }
    const names = Object.keys(drawing.curves);
    if (drawing.form === "rows") {
      const rows = names.map((series) => ({ series, y: drawing.curves[series][0] }));
      return { rows, along: "", x: rackline.axis(rows.map((row) => row.y), { ...(drawing.log ? { log: true } : { zero: true }), kind: drawing.kinds.y }), y: null, legend: [] };
    }
    const rows = names.flatMap((series, place) => drawing.curves[series].map((y, index) => ({ series, x: drawing.places[index], y, style: marked.includes(series) ? 0 : 1, place })));
    const seen = rows.map((row) => row.y).filter((y) => y >= (drawing.least ?? -Infinity));
    const ends = [drawing.places[0], drawing.places[drawing.places.length - 1]];
    const ticks = rackline.axis(ends, { log: drawing.log.includes("x"), kind: drawing.kinds.x, most: 6 }).ticks.filter((one) => one >= ends[0] && one <= ends[1]);
    const y = rackline.axis(seen, { ...(drawing.log.includes("y") ? { log: true } : { zero: true }), kind: drawing.kinds.y });
    return { rows, along: "x", x: { range: ends, ticks }, y, legend: names.map((name, place) => ({ name, place, dashed: !marked.includes(name) })) };
  }

  /** How a number is said, without what is counted. @param {any} step @param {number} value */
  const said = (step, value) => (["times", "count"].includes(step.kind) ? (value < LARGE ? text.round(value) : text.count(value)) : text.of(step.kind, value));

  /** How far off a guess is, in a sentence. @param {any} step @param {number} guess @param {number} right */
  function verdict(step, guess, right) {
    if (step.choices.length) return guess === step.right ? "Right." : `You said ${step.choices[guess]}.`;
    const factor = Math.max(guess / right, right / guess);
    const how = factor <= CLOSE ? `within ${text.round(100 * (CLOSE - 1))} %` : Number.isFinite(factor) ? `${text.round(factor, 2)} times too ${guess > right ? "high" : "low"}` : "too low";
    return `You said ${said(step, guess)}: ${how}.`;
  }

  rackline.view({
    id: "guide",
    title: "Guide",
    question: "The lecture, step by step: guess first",
    data: () => ["guide", "ledger"],
    mount(place) {
      /** @type {any[]} */
      const chapters = rackline.data.get("guide").chapters;
      const claims = rackline.data.get("ledger").claims;
      /** @type {any} */
      let shown = null; // the figure of the step
      const beside = el("div", { class: "figures" });
      const form = el("form", { class: "controls guess", "aria-label": "Guess" });
      const heard = el("p", { class: "told", role: "status" });
      const turn = el("p", { class: "turn" });
      const walk = el("ol", { class: "walk steps" });
      const card = el("section", { class: "claims" });
      place.append(walk, el("div", { class: "bench guided" }, form, el("div", { class: "guess after" }, heard), beside, turn), card);
      let frame = 0;
      let state = /** @type {Record<string, string>} */ ({});
      form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());

      /** The figure of a drawing, in the place of another. @param {string} name @param {Drawing} drawing */
      function figure(name, drawing) {
        if (shown && shown.options.name === name) return shown;
        if (shown) shown.leave();
        const columns = { lines: [["series", "series", ""], ["x", drawing.titles.x, drawing.kinds.x], ["y", drawing.titles.y, drawing.kinds.y]], rows: [["series", "", ""], ["y", drawing.titles.y, drawing.kinds.y]], slots: [["stage", "stage", ""], ["kind", "slot", ""], ["text", "micro-batch", ""], ["start", "begins", "number"], ["x2", "ends", "number"]] };
        shown = new rackline.Figure({ name, title: drawing.title, spec: drawing.spec, height: window.innerWidth <= NARROW ? 250 : 340, measures: columns[drawing.form] });
        beside.replaceChildren(shown.element);
        return shown;
      }

      /** Show a step; a guess that was made is answered at once. @param {Record<string, string>} next @param {boolean} moves */
      function go(next, moves) {
        const other = next.k !== state.k || next.n !== state.n;
        rackline.remember(next, true);
        state = next;
        rackline.ignored([]);
        draw(moves);
        const heading = /** @type {HTMLElement} */ (form.querySelector("h2"));
        if (other) heading.focus({ preventScroll: true });
        else /** @type {HTMLElement} */ (form.querySelector("button.main, input:checked")).focus({ preventScroll: true });
        if (turn.getBoundingClientRect().bottom > window.innerHeight) form.scrollIntoView({ block: "start" });
      }

      function draw(/** @type {boolean} */ moves) {
        cancelAnimationFrame(frame);
        const chapter = chapters[Math.max(chapters.findIndex((one) => one.id === state.n), 0)];
        const index = Math.max(chapter.steps.findIndex((/** @type {any} */ one) => one.id === state.k), 0);
        const step = chapter.steps[index];
        /** @type {Drawing} */
        const drawing = chapter.drawings[step.figure];
        const into = figure(`guide-${chapter.id}-${step.figure}`, drawing);
        const all = drawn(step, drawing);
        const points = step.reads === "idle" ? [] : marks(step, drawing);
        const right = number(step, drawing);
        const chosen = step.choices.length > 0;
        const guess = state.g === undefined ? NaN : Number(state.g);
        const known = Number.isFinite(guess) && (chosen ? guess in step.choices : guess > 0);
        const linear = !chosen && (step.low === 0 || (step.kind === "count" && step.high <= 100 && step.low >= 1));
        const first = chosen ? 0 : linear ? (step.low + step.high) / 2 : Math.sqrt(step.low * step.high);
        const unit = step.unit || (step.kind === "times" ? "times" : "");

        walk.replaceChildren(
          ...chapters.map((one, place) =>
            el("li", {}, el("button", { type: "button", "aria-pressed": String(one === chapter), title: one.title, onclick: () => go({ n: one.id }, false) }, el("b", { text: String(place + 1) }), el("span", { text: one.title }))),
          ),
        );
        const whole = step.kind === "count" && Number.isInteger(step.value);
        const slider = chosen ? null : controls.slider({ key: "g", label: "Your guess", low: step.low, high: step.high, value: first, kind: step.kind, whole, linear, unit }, () => !known && slider && put(0, slider.get()));
        const radios = chosen
          ? controls.toggle({ key: "g", label: "Your guess", value: known ? String(guess) : "", options: step.choices.map((/** @type {string} */ label, /** @type {number} */ place) => ({ value: String(place), label })) }, () => radios && go({ n: chapter.id, k: step.id, g: radios.get() }, true))
          : null;
        if (slider && known) slider.set(guess);
        if (radios && !known) radios.element.querySelectorAll("input").forEach((/** @type {any} */ box) => (box.checked = false));
        const after = chapter.steps[index + 1] || null;
        const other = chapters[chapters.indexOf(chapter) + 1];
        const show = !slider ? null : el("button", { type: "button", class: "main", text: known ? "Guess again" : "Show", onclick: () => go(known ? { n: chapter.id, k: step.id } : { n: chapter.id, k: step.id, g: String(Number(slider.get().toPrecision(4))) }, true) });
        form.replaceChildren(
          el("p", { class: "quiet", text: `${chapter.title}, step ${index + 1} of ${chapter.steps.length}` }),
          el(
            "ol",
            { class: "dots", "aria-label": "Steps of this chapter" },
            chapter.steps.map((/** @type {any} */ one, /** @type {number} */ place) =>
              el("li", {}, el("button", { type: "button", "aria-label": `Step ${place + 1}: ${one.title}`, title: one.title, "aria-current": one === step ? "step" : null, class: place < index ? "past" : null, onclick: () => go({ n: chapter.id, k: one.id }, false) })),
            ),
          ),
          el("h2", { text: step.title, tabindex: -1 }),
          el("p", { class: "ask", text: step.ask }),
          (slider || /** @type {any} */ (radios)).element,
          ...(slider && !known && step.reads === "x" ? [el("p", { class: "quiet", text: "Drag the slider, or the line in the figure." })] : []),
          ...(show ? [show] : []),
        );
        const back = el("button", { type: "button", text: "← Back", disabled: index === 0, onclick: () => go({ n: chapter.id, k: chapter.steps[index - 1].id }, false) });
        const on = el("button", { type: "button", class: known ? "main" : null, text: after ? "Next →" : other ? "Next chapter →" : "See every claim", onclick: () => (after ? go({ n: chapter.id, k: after.id }, false) : other ? go({ n: other.id }, false) : (location.hash = "#/lecture")) });
        turn.replaceChildren(back, on);
        card.replaceChildren(el("h2", { text: "The claim" }), parts.claimCard(claims[step.claim], true));
        const told = known ? `${verdict(step, guess, right)} ${step.after.replace("{value}", said(step, right))}` : "";
        heard.hidden = !told;
        heard.textContent = told;
        rackline.answer(chapter.intro);
        into.name(all.legend);
        const description = `${drawing.title}: ${drawing.of}.`;
        const still = !moves || !known || window.matchMedia("(prefers-reduced-motion: reduce)").matches;
        const from = performance.now();
        const rise = (/** @type {number} */ now) => {
          const part = still ? 1 : Math.min((now - from) / DRAWN_MS, 1);
          put(known ? part : 0, known && !chosen ? guess : slider ? slider.get() : NaN);
          if (part < 1 && known) frame = requestAnimationFrame(rise);
          else place.setAttribute("data-ready", "");
        };
        place.removeAttribute("data-ready");
        rise(from);
        if (slider && !known && step.reads !== "idle") drag(into, drawing, (/** @type {number} */ found) => (slider.set(text.round(found).replace(/,/g, "")), put(0, slider.get())));
        else into.place.onpointerdown = into.place.onpointermove = null;

        /** The figure up to a part of its length; the guess stands in it where it is a place on an axis. */
        function put(/** @type {number} */ part, /** @type {number} */ guessed) {
          const [low, high] = all.x.range;
          const end = drawing.log.includes("x") ? low * (high / low) ** part : low + part * (high - low);
          const asked = step.marks[0] && step.marks[0].on;
          const rows = drawing.form === "rows" ? all.rows.filter((/** @type {any} */ row) => part === 1 || row.series !== asked) : part > 0 ? all.rows.filter((/** @type {any} */ row) => row[all.along] <= end) : [];
          const height = step.reads === "over" ? guessed * points[1].y : guessed;
          const [place, range] = step.reads === "x" ? [guessed, all.x.range] : [height, (all.y || all.x).range];
          const own = step.reads === "idle" || !(place >= range[0] && place <= range[1]) ? [] : [step.reads === "x" ? { x: place } : { y: place }];
          const found = part < 1 ? [] : drawing.form === "rows" ? points.map(({ series, y }) => ({ series, y })) : points.map(({ x, y }) => ({ x, y }));
          const sets = /** @type {Record<string, any>} */ ({ slots: {}, rows: { marks: [...own, ...found] }, lines: { marks: [...own, ...found], regions: [], measured: [] } })[drawing.form];
          into.update({ rows, ...sets }, { x_range: all.x.range, x_ticks: all.x.ticks, ...(all.y ? { y_range: all.y.range, y_ticks: all.y.ticks } : {}) }, description);
          into.note.textContent = `${drawing.of[0].toUpperCase()}${drawing.of.slice(1)}.${own.length ? " The line without a point is your guess." : ""}`;
        }

        /** Let the guess be dragged in the figure too. @param {any} one @param {Drawing} shape @param {(value: number) => void} take */
        function drag(one, shape, take) {
          const channel = step.reads === "x" || shape.form === "rows" ? "x" : "y";
          one.place.onpointerdown = one.place.onpointermove = (/** @type {PointerEvent} */ event) => {
            if (!event.buttons || !one.view || (channel === "y" && event.pointerType === "touch")) return; // touch scrolls up and down
            const box = one.place.getBoundingClientRect();
            const [left, top] = one.view.origin();
            const found = one.view.scale(channel).invert(channel === "x" ? event.clientX - box.left - left : event.clientY - box.top - top);
            if (found > 0) take(step.reads === "over" ? found / points[1].y : found);
          };
        }
      }

      return {
        update(/** @type {Record<string, string>} */ given) {
          state = given;
          draw(false);
          const chapter = chapters.find((one) => one.id === given.n);
          const step = chapter && chapter.steps.find((/** @type {any} */ one) => one.id === given.k);
          rackline.ignored([
            ...Object.keys(given).filter((key) => !["n", "k", "g"].includes(key)).map((key) => `${key}=${given[key]} (known here: n, k, g)`),
            ...(given.n && !chapter ? [`n=${given.n} (allowed: ${chapters.map((one) => one.id).join(", ")})`] : []),
            ...(given.k && !step && chapter ? [`k=${given.k} (allowed: ${chapter.steps.map((/** @type {any} */ one) => one.id).join(", ")})`] : []),
            ...(given.g && !(Number(given.g) >= 0) ? [`g=${given.g} (allowed: a number)`] : []),
          ]);
        },
        full: () => ({ n: state.n || chapters[0].id, k: state.k || "", g: state.g || "" }),
        leave() {
          cancelAnimationFrame(frame);
          if (shown) shown.leave();
        },
      };
    },
  });

  Object.assign(rackline, { guide: { number } });
})();
