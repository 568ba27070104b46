// @ts-check
// Guide: the lecture step by step beside a figure. The reader guesses, then the figure draws itself and says the number.
"use strict";

(() => {
  const { el, text, pass, parts, controls } = rackline;
  const SCENARIO = "frontier-fp8"; // the deployment of the first chapter
  const MOST = 16384;
  const DRAWN_MS = 900; // a curve takes this long to draw itself [ms]
  const CLOSE = 1.1; // a guess within this factor is called close
  const NAMES = /** @type {Record<string, string>} */ ({ F: "forward", B: "backward", W: "gradient of weights" });

  /** @typedef {{rows: any[], along: string, marks: any[], x: any, y: any, legend: any[], description: string, number: number}} Drawn
   * rows in the order in which they appear along a field; number: what is read from the marks */

  const scenario = () => rackline.data.get(`scenario-${SCENARIO}`);
  const breakdown = (/** @type {number} */ batch, /** @type {number} */ context) => pass.breakdown(scenario(), pass.timing(scenario(), "blackboard"), batch, context);

  /** What each figure draws for a step. @type {Record<string, (step: any) => Drawn>} */
  const drawings = {
    step({ at, quantity }) {
      const series = ["the step", "compute", "HBM"];
      const rows = pass.batches(MOST).flatMap((size) => {
        const found = breakdown(size, at.c);
        return [found.seconds, found.alone.compute, found.alone.HBM].map((seconds, index) => ({ series: series[index], batch_size: size, seconds, style: index ? 1 : 0, place: index }));
      });
      const gap = (/** @type {number} */ size) => breakdown(size, at.c).alone.compute - breakdown(size, at.c).alone.HBM;
      const size = quantity === "knee" ? pass.crossing(gap, 1, 1e6) : at.b;
      const marks = [{ batch_size: size, seconds: breakdown(size, at.c).seconds }];
      const numbers = /** @type {Record<string, number>} */ ({ floor: marks[0].seconds, crowd: marks[0].seconds / rows[0].seconds, knee: marks[0].batch_size });
      const y = rackline.axis(rows.filter((row) => row.seconds > 1e-5).map((row) => row.seconds), { log: true });
      return { rows: rows.filter((row) => row.seconds >= y.range[0]), along: "batch_size", marks, x: batches, y, legend: named(series), description: "Time of a decode step against the batch size, on log axes.", number: numbers[quantity] };
    },
    cost({ at, quantity }) {
      const usd = (/** @type {number} */ size) => scenario().cost(size, breakdown(size, at.c).seconds, scenario().facts.usdPerChipHour).usdPerMtok;
      const rows = pass.batches(MOST).map((size) => ({ series: "cost", batch_size: size, usd_per_mtok: usd(size), style: 0, place: 0 }));
      const knee = pass.crossing((size) => breakdown(size, at.c).alone.compute - breakdown(size, at.c).alone.HBM, 1, 1e6);
      const marks = [at.b, quantity === "slow" ? knee : MOST].map((size) => ({ batch_size: size, usd_per_mtok: usd(size) }));
      const y = rackline.axis(rows.map((row) => row.usd_per_mtok), { log: true });
      return { rows, along: "batch_size", marks, x: batches, y, legend: [], description: "Cost of a million output tokens against the batch size, on log axes.", number: marks[0].usd_per_mtok / marks[1].usd_per_mtok };
    },
    context({ at }) {
      const series = ["reading the cache", "compute"];
      const longest = 1e6;
      const times = (/** @type {number} */ length) => {
        const found = breakdown(at.b, length);
        return [found.rows.reduce((sum, row) => sum + (/** @type {any} */ (row).readsCache ? row.hbm : 0), 0), found.alone.compute];
      };
      const rows = pass.spread(at.c, longest, 61).flatMap((length) => times(length).map((seconds, index) => ({ series: series[index], context_len: length, seconds, style: index, place: index })));
      const over = pass.crossing((length) => times(length)[0] - times(length)[1], 1, longest);
      const y = rackline.axis(rows.map((row) => row.seconds), { log: true });
      return { rows, along: "context_len", marks: [{ context_len: over, seconds: times(over)[1] }], x: rackline.axis([at.c, longest], { log: true }), y, legend: named(series), description: "Time to read the cache and time of the arithmetic against the context, on log axes.", number: over };
    },
    slots({ at }) {
      const run = ran(at.x, at.pp, at.m);
      const rows = run.slots.map((/** @type {any} */ [stage, kind, micro, _chunk, start, end]) => ({ stage, kind: NAMES[kind], text: `micro-batch ${micro + 1}`, start, x2: end }));
      const works = rows.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.x2 - row.start, 0);
      const ends = Math.max(...rows.map((/** @type {any} */ row) => row.x2));
      return { rows, along: "start", marks: [], x: rackline.axis([0, run.step], { zero: true, most: 8 }), y: null, legend: [], description: `${at.x} with ${at.pp} stages and ${at.m} micro-batches: what each stage does when.`, number: 1 - works / (at.pp * ends) };
    },
    bubble: (step) => byMicroBatches(step, "bubble", "bubble_share", "Share of the step that stages wait"),
    memory: (step) => byMicroBatches(step, "inFlight", "in_flight", "Activations that the fullest stage holds"),
  };

  const ran = (/** @type {string} */ name, /** @type {number} */ pp, /** @type {number} */ m) => rackline.data.get("pipeline").runs[`${name}/${pp}/${m}`];
  const named = (/** @type {string[]} */ series) => series.map((name, place) => ({ name, place, dashed: place > 0 }));
  const batches = { range: [1, MOST], ticks: [1, 10, 100, 1000, 10000] };

  /** @param {any} step @param {string} value @param {string} field @param {string} what @returns {Drawn} */
  function byMicroBatches({ at, quantity }, value, field, what) {
    const grid = rackline.data.get("pipeline");
    const series = [...new Set([at.x, "1f1b", "gpipe"])];
    const rows = grid.microBatches.flatMap((/** @type {number} */ m) =>
      series.flatMap((name, place) => (ran(name, at.pp, m) ? [{ series: name, micro_batches: m, [field]: ran(name, at.pp, m)[value], style: place ? 1 : 0, place }] : [])),
    );
    const of = (/** @type {string} */ name) => ({ micro_batches: at.m, [field]: ran(name, at.pp, at.m)[value] });
    const marks = quantity === "filled" ? [of(at.x), of("1f1b")] : [of(at.x)];
    const number = quantity === "filled" ? Number(marks[0][field]) / Number(marks[1][field]) : Number(marks[0][field]);
    const ticks = grid.microBatches;
    return { rows, along: "micro_batches", marks, x: { range: [ticks[0], ticks[ticks.length - 1]], ticks }, y: rackline.axis(rows.map((/** @type {any} */ row) => row[field]), { zero: true }), legend: named(series), description: `${what} against micro-batches.`, number };
  }

  /** How a number is said. @param {string} kind @param {number} value */
  const said = (kind, value) => (["count", "tokens", "times"].includes(kind) ? text.round(value) : text.of(kind, value));
  const UNITS = /** @type {Record<string, string>} */ ({ count: "sequences", tokens: "tokens", times: "times" });

  /** How far off a guess is, in a sentence. @param {any} step @param {number} guess @param {number} number */
  function verdict(step, guess, number) {
    const factor = Math.max(guess / number, number / guess);
    const how = factor <= CLOSE ? `within ${text.round(100 * (CLOSE - 1))} %` : Number.isFinite(factor) ? `${text.round(factor, 2)} times too ${guess > number ? "high" : "low"}` : "too low";
    return `You said ${said(step.kind, guess)}: ${how}.`;
  }

  rackline.view({
    id: "guide",
    title: "Guide",
    question: "The lecture, step by step: guess first",
    data: () => ["guide", "pipeline", "ledger", `scenario-${SCENARIO}`],
    mount(place) {
      const site = rackline.data.get("site");
      /** @type {any[]} */
      const chapters = rackline.data.get("guide").chapters;
      const claims = rackline.data.get("ledger").claims;
      const measures = /** @type {Record<string, any>} */ ({
        step: { title: "Time of a decode step", spec: site.figures.batch_step, measures: [["series", "series", ""], ["batch_size", "batch size", "whole"], ["seconds", "time", "seconds"]] },
        cost: { title: "Cost of a million output tokens", spec: site.figures.batch_cost, measures: [["batch_size", "batch size", "whole"], ["usd_per_mtok", "cost", "usd"]] },
        context: { title: "Cache and arithmetic of a step", spec: site.figures.context_step, measures: [["series", "series", ""], ["context_len", "context length", "whole"], ["seconds", "time", "seconds"]] },
        slots: { title: "What each stage does when", spec: site.figures.pipeline_slots, measures: [["stage", "stage", ""], ["kind", "slot", ""], ["text", "micro-batch", ""], ["start", "begins", "number"], ["x2", "ends", "number"]] },
        bubble: { title: "Share of the step that stages wait", spec: site.figures.pipeline_bubble, measures: [["series", "schedule", ""], ["micro_batches", "micro-batches", "whole"], ["bubble_share", "bubble", "share"]] },
        memory: { title: "Activations that the fullest stage holds", spec: site.figures.pipeline_memory, measures: [["series", "schedule", ""], ["micro_batches", "micro-batches", "whole"], ["in_flight", "activations", "number"]] },
      });
      /** @type {Map<string, any>} */
      const figures = new Map();
      const beside = el("div", { class: "figures guided" });
      const form = el("form", { class: "controls guess", "aria-label": "Guess" });
      const walk = el("ol", { class: "walk steps" });
      const card = el("section", { class: "claims" });
      place.append(walk, el("div", { class: "bench" }, form, beside), card);
      const heard = el("p", { class: "told", role: "status" });
      let frame = 0;
      let state = /** @type {Record<string, string>} */ ({});
      form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());

      /** @param {string} name */
      function figure(name) {
        if (!figures.has(name)) {
          const { title, ...rest } = measures[name];
          const made = new rackline.Figure({ name: `guide-${name}`, title, ...rest });
          figures.set(name, made);
          beside.append(made.element);
        }
        for (const [one, { element }] of figures) element.hidden = one !== name;
        return figures.get(name);
      }

      /** Show a step; a guess that was made is answered at once. @param {Record<string, string>} next @param {boolean} moves */
      function go(next, moves) {
        rackline.remember(next, true);
        state = next;
        rackline.ignored([]);
        draw(moves);
      }

      function draw(/** @type {boolean} */ moves) {
        cancelAnimationFrame(frame);
        const chapter = chapters[Math.max(chapters.findIndex((one) => one.id === state.n), 0)];
        const index = Math.max(chapter.steps.findIndex((/** @type {any} */ one) => one.id === state.k), 0);
        const step = chapter.steps[index];
        const shown = figure(step.figure);
        const drawn = drawings[step.figure](step);
        const chosen = step.choices.length > 0;
        const guess = state.g === undefined ? NaN : Number(state.g);
        const known = Number.isFinite(guess) && (chosen ? guess in step.choices : guess > 0);
        const first = chosen ? 0 : step.kind === "share" ? 0.5 : Math.sqrt(step.low * step.high);

        walk.replaceChildren(
          ...chapters.map((one) => el("li", {}, el("button", { type: "button", "aria-pressed": String(one === chapter), onclick: () => go({ n: one.id }, false) }, el("b", { text: one.title }), el("small", { text: `${one.steps.length} steps` })))),
        );
        const slider = chosen ? null : controls.slider({ key: "g", label: "Your guess", low: step.low || 0, high: step.high, value: first, kind: step.kind, whole: ["count", "tokens"].includes(step.kind), linear: step.kind === "share" || step.kind === "number", unit: UNITS[step.kind] }, () => !known && put(drawn, shown, 0, slider.get()));
        const radios = chosen
          ? controls.toggle({ key: "g", label: "Your guess", value: known ? String(guess) : "", options: step.choices.map((/** @type {string} */ label, /** @type {number} */ place) => ({ value: String(place), label })) }, () => go({ n: chapter.id, k: step.id, g: radios.get() }, true))
          : null;
        if (slider && known) slider.set(guess);
        if (radios && !known) radios.element.querySelectorAll("input").forEach((/** @type {any} */ box) => (box.checked = false));
        const back = el("button", { type: "button", text: "← Back", disabled: index === 0, onclick: () => go({ n: chapter.id, k: chapter.steps[index - 1].id }, false) });
        const after = chapter.steps[index + 1] || null;
        const other = chapters[chapters.indexOf(chapter) + 1];
        const on = el("button", { type: "button", class: "main", text: after ? "Next →" : other ? "Next chapter →" : "See every claim", onclick: () => (after ? go({ n: chapter.id, k: after.id }, false) : other ? go({ n: other.id }, false) : (location.hash = "#/lecture")) });
        const show = chosen ? null : el("button", { type: "button", class: "main", text: known ? "Guess again" : "Show", onclick: () => go(known ? { n: chapter.id, k: step.id } : { n: chapter.id, k: step.id, g: String(Number(slider.get().toPrecision(4))) }, true) });
        const mine = chosen ? (guess === step.right ? "Right." : `You said ${step.choices[guess]}.`) : verdict(step, guess, drawn.number);
        const told = known ? `${mine} ${step.after.replace("{value}", said(step.kind, drawn.number))}` : "";
        form.replaceChildren(
          el("p", { class: "quiet", text: `${chapter.title}, step ${index + 1} of ${chapter.steps.length}` }),
          el("h2", { text: step.title }),
          el("p", { class: "ask", text: step.ask }),
          (slider || /** @type {any} */ (radios)).element,
          ...(show ? [show] : []),
          heard,
          el("p", { class: "turn" }, back, on),
        );
        card.replaceChildren(el("h2", { text: "The claim" }), parts.claimCard(claims[step.claim], true));
        heard.hidden = !told;
        heard.textContent = told;
        rackline.answer(chapter.intro);
        shown.name(drawn.legend);
        const still = !moves || !known || window.matchMedia("(prefers-reduced-motion: reduce)").matches;
        const from = performance.now();
        const rise = (/** @type {number} */ now) => {
          const part = still ? 1 : Math.min((now - from) / DRAWN_MS, 1);
          put(drawn, shown, known ? part : 0, known && !chosen ? guess : slider ? slider.get() : NaN);
          if (part < 1 && known) frame = requestAnimationFrame(rise);
          else place.setAttribute("data-ready", "");
        };
        place.removeAttribute("data-ready");
        rise(from);

        /** The figure up to a part of its length; the guess stands in it where it is a place on an axis. */
        function put(/** @type {Drawn} */ all, /** @type {any} */ into, /** @type {number} */ part, /** @type {number} */ guessed) {
          const [low, high] = all.x.range;
          const log = all.along === "batch_size" || all.along === "context_len" || all.along === "micro_batches";
          const end = log ? low * (high / low) ** part : low + part * (high - low);
          const rows = part > 0 ? all.rows.filter((row) => row[all.along] <= end) : [];
          const along = ["knee", "crossover"].includes(step.quantity) ? all.along : "";
          const up = /** @type {Record<string, string>} */ ({ floor: "seconds", bubble: "bubble_share", held: "in_flight" })[step.quantity];
          const own = Number.isFinite(guessed) ? (along ? [{ [along]: guessed }] : up && step.figure !== "slots" ? [{ [up]: guessed }] : []) : [];
          const marks = step.figure === "slots" ? {} : { marks: [...own, ...(part < 1 ? [] : all.marks)], regions: [], measured: [] };
          into.update({ rows, ...marks }, { x_range: all.x.range, x_ticks: all.x.ticks, ...(all.y ? { y_range: all.y.range, y_ticks: all.y.ticks } : {}) }, all.description);
          into.note.textContent = own.length ? "The line without a point is your guess." : "";
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
          figures.forEach((one) => one.leave());
        },
      };
    },
  });

  Object.assign(rackline, { guide: { drawings } });
})();
