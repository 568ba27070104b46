// @ts-check
// Batch: three regimes of a decode step, what a token costs, where the knee is, and what fits.
"use strict";

(() => {
  const { text, pass, parts, controls } = rackline;
  const MOST = 16384;
  const OWN = "own"; // a deployment that a server writes out when it is asked for
  const alone = () => document.body.dataset.mode === "static";

  /** Entries of a deployment of one's own, by key of the address: option of `explain`, label, value at first. */
  const ENTRIES = /** @type {Record<string, {option: string, label: string, value: string, hint: string, names?: string}>} */ ({
    m: { option: "model", label: "Model", value: "llama-3.3-70b", hint: "a name of the catalogue", names: "models" },
    k: { option: "on", label: "Cluster", value: "dgx-h200", hint: "a name of the catalogue", names: "clusters" },
    l: { option: "layout", label: "Layout", value: "", hint: "such as tp=8 or ep=8,attention_dp=8; the smallest that fits where it is empty" },
    q: { option: "precision", label: "Precision", value: "", hint: "such as bf16, fp8 or fp4; the model's own where it is empty" },
    e: { option: "calibration", label: "Stack", value: "", hint: "vllm, sglang, trtllm or generic; the best known where it is empty" },
  });

  /** Controls that all views of one pass share. */
  function passControls(/** @type {any} */ site, /** @type {(kept: boolean) => void} */ changed, /** @type {string[]} */ keys) {
    const options = site.scenarios.map((/** @type {any} */ one) => ({ value: one.name, label: one.title }));
    if (!alone()) options.push({ value: OWN, label: "Another model, cluster or layout" });
    const all = /** @type {Record<string, any>} */ ({
      s: () => controls.select({ key: "s", label: "Deployment", options, value: site.scenarios[0].name }, changed),
      b: () => controls.slider({ key: "b", label: "Batch size", low: 1, high: MOST, value: 512, whole: true, unit: "sequences" }, changed),
      c: () => controls.slider({ key: "c", label: "Context length", low: 128, high: 1048576, value: 4096, whole: true, binary: true, unit: "tokens" }, changed),
      p: () => controls.slider({ key: "p", label: "Price of a chip", low: 0.2, high: 20, value: 2, kind: "usd", unit: "USD/h" }, changed),
      on: () =>
        controls.toggle(
          {
            key: "on",
            label: "Timed with",
            value: "measured",
            options: [
              { value: "measured", label: "Measured kernels" },
              { value: "blackboard", label: "Ideal roofline" },
            ],
          },
          changed,
        ),
    });
    const found = Object.fromEntries(keys.map((key) => [key, all[key]()]));
    if (alone()) return found;
    const entries = Object.entries(ENTRIES).map(([key, one]) => [key, controls.entry({ key, label: one.label, value: one.value, hint: one.hint, placeholder: one.value ? "" : "chosen", names: one.names && (async () => (await rackline.load("names"))[/** @type {string} */ (one.names)]) }, changed)]);
    const { s, ...rest } = found;
    return { s, ...Object.fromEntries(entries), ...rest };
  }

  /** Put a scenario's own values into the controls that the address leaves alone. */
  function settle(/** @type {any} */ made, /** @type {any} */ scenario, /** @type {any} */ state) {
    const { facts } = scenario;
    if (made.s) made.s.set(state.s);
    for (const key of Object.keys(ENTRIES))
      if (made[key]) {
        made[key].set(state[key]);
        made[key].element.hidden = state.s !== OWN;
      }
    if (made.b) made.b.initial(facts.batch);
    if (made.c) {
      made.c.initial(facts.context);
      made.c.limits(128, facts.longestContext);
    }
    if (made.p) made.p.initial(facts.usdPerChipHour || 2);
    for (const key of ["b", "c", "p"]) if (made[key]) made[key].set(state[key] === undefined ? undefined : Number(state[key]));
    if (made.on) made.on.set(state.on);
  }

  /** What `explain` is asked for a deployment of one's own. @param {any} state */
  function asking(state) {
    const given = Object.entries(ENTRIES).map(([key, one]) => [one.option, state[key] === undefined ? one.value : state[key]]);
    return new URLSearchParams([...given.filter(([, value]) => value), ["batch", "64"], ["context", "4096"]]).toString();
  }

  /** What a view of this state loads: a file, or what writes a deployment of one's own. @param {any} state */
  function needed(state) {
    const name = scenarioOf(state);
    if (state.s !== OWN || alone()) return [name];
    const once = () => {
      const known = writing.get(name) || written(name, `api/v1/explain/script?${asking(state)}`).finally(() => writing.delete(name));
      writing.set(name, known);
      return known;
    };
    return [scenarioOf({}), once];
  }

  /** What is being written out. @type {Map<string, Promise<void>>} */
  const writing = new Map();

  /** Have the server write a deployment out; a refusal is kept in its place. @param {string} name @param {string} address */
  async function written(name, address) {
    const known = rackline.data.get(name);
    if (known && !known.problem) return;
    for (;;) {
      const response = await fetch(address);
      if (response.ok) {
        rackline.data.delete(name);
        await rackline.load(name, address);
        return;
      }
      if (response.status !== 429) {
        rackline.give(name, { problem: await response.json().catch(() => ({ detail: `the server answered ${response.status}` })) });
        return;
      }
      await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get("Retry-After") || 1)));
    }
  }

  /** The scenario of a state; where it was refused, why, and the one before stays. @param {HTMLElement} place @param {any} state @param {any} before @param {any[]} list */
  function chosen(place, state, before, list) {
    const found = rackline.data.get(scenarioOf(state));
    const { problem } = found;
    place.toggleAttribute("data-refused", Boolean(problem));
    controls.mark(list);
    if (!problem) return found;
    const why = parts.refusal(problem);
    rackline.answer(`Refused. ${why}`);
    const options = { cluster: "on", ...Object.fromEntries(Object.values(ENTRIES).map((one) => [one.option, one.option])) };
    controls.mark(list, Object.keys(ENTRIES).find((key) => ENTRIES[key].option === options[/** @type {"cluster"} */ (problem.what)]), why);
    place.setAttribute("data-ready", "");
    return before;
  }

  /** Whether the controls show another deployment than the one that is drawn. */
  function moved(/** @type {any} */ made, /** @type {any} */ scenario) {
    const state = Object.fromEntries(["s", ...Object.keys(ENTRIES)].filter((key) => made[key]).map((key) => [key, made[key].get()]));
    return scenarioOf(state) !== `scenario-${scenario.facts.name}`;
  }

  const scenarioOf = (/** @type {any} */ state) => {
    const site = rackline.data.get("site");
    if (state.s === OWN && !alone()) return `scenario-${OWN}?${asking(state)}`;
    const known = site && site.scenarios.some((/** @type {any} */ one) => one.name === state.s);
    return `scenario-${known ? state.s : "deepseek-v3"}`;
  };

  /** The pass as `rackline explain` takes it. */
  function explained(/** @type {any} */ facts, /** @type {string} */ basis, /** @type {number} */ batch, /** @type {number} */ context) {
    const { model, on, ...rest } = facts.params;
    const options = { on, batch, context, ...rest, ...(basis === "blackboard" ? { calibration: "unit", policy: "blackboard", ...(rest.calibration !== "unit" ? { engine: rest.calibration } : {}) } : {}) };
    return parts.spelled("explain", [model], options);
  }

  /** Measured steps of a scenario, each at its own batch and context, and what is predicted there. */
  function measured(/** @type {any} */ scenario, /** @type {any} */ time) {
    const rows = scenario.facts.measured.map((/** @type {any} */ one) => {
      const here = pass.seconds(scenario, time, one.batch_size, one.context_len);
      const { band } = time.facts;
      const outside = band && !(band.low * here <= one.seconds && one.seconds <= band.high * here);
      const what = `${text.seconds(one.seconds)} with ${text.whole(one.batch_size)} ${one.batch_size === 1 ? "sequence" : "sequences"} of ${text.whole(one.context_len)} tokens (${one.stack}), predicted ${text.seconds(here)}${outside ? ", outside the band" : ""}`;
      return { ...one, predicted: here, text: what };
    });
    const sources = [...new Set(rows.map((/** @type {any} */ one) => one.source))];
    return { rows, text: rows.length ? `Triangles: measured ${rows.map((/** @type {any} */ one) => one.text).join("; ")}. ${sources.join("; ")}.` : "" };
  }

  /** What nine of ten measured passes of this kind were, in words. */
  function banded(/** @type {any} */ time, /** @type {number} */ seconds) {
    const { band } = time.facts;
    if (!band) return time.facts.policy === "blackboard" ? " No machine is faster than this ideal roofline." : "";
    return ` Nine of ten measured passes of such deployments took ${text.seconds(band.low * seconds)} to ${text.seconds(band.high * seconds)} where this much was predicted.`;
  }

  /** Rows and commands follow once the hand rests. */
  function told(/** @type {HTMLElement} */ place, /** @type {any} */ why, /** @type {any} */ commands, /** @type {any} */ here, /** @type {{command: string, python: string}} */ asked) {
    rackline.later(() => {
      why.update(here);
      commands.update(asked.command, asked.python);
      if (place.isConnected) place.setAttribute("data-ready", "");
    });
    place.removeAttribute("data-ready");
  }

  const binding = (/** @type {string} */ name) => ({ HBM: "reading memory", compute: "arithmetic", "scale-up": "the links inside the domain", "scale-out": "the network", overhead: "fixed overhead" })[name] || name;

  rackline.view({
    id: "batch",
    title: "Batch",
    question: "How many users should share a pass?",
    data: needed,
    mount(place) {
      const site = rackline.data.get("site");
      let scenario = rackline.data.get(scenarioOf({}));
      const made = passControls(site, (kept) => change(kept), ["s", "b", "c", "p", "on"]);
      const list = Object.values(made);
      const step = new rackline.Figure({
        name: "step",
        title: "Time of a decode step",
        spec: site.figures.batch_step,
        hover: ["batch_size", "whole", "seconds", "seconds"],
        measures: [["series", "series", ""], ["batch_size", "batch size", "whole"], ["seconds", "time", "seconds"]],
      });
      const cost = new rackline.Figure({
        name: "cost",
        title: "Cost of a million output tokens",
        spec: site.figures.batch_cost,
        hover: ["batch_size", "whole", "usd_per_mtok", "usd"],
        measures: [["batch_size", "batch size", "whole"], ["usd_per_mtok", "cost", "usd"], ["tokens_per_s_per_user", "tokens/s of each user", "number"]],
      });
      const why = parts.why();
      const commands = parts.commands();
      place.append(
        parts.bench(controls.form(list), [step.element, cost.element]),
        why.element,
        parts.claims(site.views.batch.claims),
        commands.element,
      );
      const change = controls.frames(() => list, () => draw());

      function draw() {
        if (moved(made, scenario)) return rackline.show();
        const [batch, context, price, basis] = [made.b.get(), made.c.get(), made.p.get(), made.on.get()];
        const time = pass.timing(scenario, basis);
        const fits = scenario.fits(context);
        const here = pass.breakdown(scenario, time, batch, context);
        const sizes = pass.batches(MOST);
        /** @type {any[]} */
        const rows = [];
        /** @type {any[]} */
        const costs = [];
        const series = ["the step", "compute", "HBM", "links", "overhead"];
        for (const size of sizes) {
          const found = pass.breakdown(scenario, time, size, context);
          const parts = [found.seconds, found.alone.compute, found.alone.HBM, found.alone["scale-up"] + found.alone["scale-out"], found.alone.overhead];
          parts.forEach((seconds, index) => {
            if (seconds > 0) rows.push({ series: series[index], batch_size: size, seconds, style: index ? 1 : 0, place: index });
          });
          const money = scenario.cost(size, found.seconds, price);
          costs.push({ series: "cost", batch_size: size, usd_per_mtok: money.usdPerMtok, tokens_per_s_per_user: money.perUser, style: 0, place: 0 });
        }
        const money = scenario.cost(batch, here.seconds, price);
        const region = fits < MOST ? [{ low: Math.max(fits, 1), high: MOST, text: "does not fit" }] : [];
        const shown = rows.filter((row) => row.style === 0 || row.seconds > here.seconds / 400);
        const seen = measured(scenario, time);
        const y = rackline.axis([...shown, ...seen.rows].map((row) => row.seconds), { log: true });
        const z = rackline.axis(costs.map((row) => row.usd_per_mtok), { log: true });
        const x = { x_range: [1, MOST], x_ticks: [1, 3, 10, 30, 100, 300, 1000, 3000, 10000] };
        const knee = pass.crossing((size) => {
          const { alone } = pass.breakdown(scenario, time, size, context);
          return alone.compute - alone.HBM;
        }, 1, 1e6);
        step.name(series.map((name, index) => ({ name, place: index, dashed: index > 0 })).filter((one) => rows.some((row) => row.series === one.name)));
        step.update(
          { rows, marks: [{ batch_size: batch, seconds: here.seconds }], regions: region, measured: seen.rows },
          { ...x, y_range: y.range, y_ticks: y.ticks },
          `Time of a decode step against the batch size at a context of ${text.whole(context)} tokens, on log axes: ${text.seconds(rows[0].seconds)} with one sequence, ${text.seconds(here.seconds)} with ${text.whole(batch)}. ${Number.isFinite(knee) ? `Arithmetic takes longer than memory from ${text.whole(knee)} sequences.` : "Memory takes longer than arithmetic at every batch size."}`,
        );
        step.note.textContent = `${fits < MOST ? `Shaded: the cache of more than ${text.whole(fits)} such sequences does not fit. ` : ""}${seen.text}`;
        cost.update(
          { rows: costs, marks: [{ batch_size: batch, usd_per_mtok: money.usdPerMtok }], regions: region },
          { ...x, y_range: z.range, y_ticks: z.ticks },
          `Cost of a million output tokens against the batch size, on log axes: ${text.usd(costs[0].usd_per_mtok)} with one sequence, ${text.usd(money.usdPerMtok)} with ${text.whole(batch)}.`,
        );
        cost.note.textContent = `${text.number(money.perUser)} tokens/s for each user, ${text.number(money.perChip)} tokens/s from each chip.`;
        const room = batch > fits ? `It does not fit: there is room for ${text.whole(fits)} sequences of this length.` : `${text.whole(fits)} sequences of this length fit.`;
        const turn = Number.isFinite(knee)
          ? `Arithmetic overtakes memory at ${text.whole(knee)} sequences`
          : "Memory takes longer than arithmetic at any batch, because each sequence brings its own cache";
        rackline.answer(
          `A step with ${text.whole(batch)} ${batch === 1 ? "sequence" : "sequences"} takes ${text.seconds(here.seconds)}, most of it ${binding(here.binds)}, and a million output tokens cost ${text.usd(money.usdPerMtok)}. ${turn}. ${room}${banded(time, here.seconds)}`,
        );
        return told(place, why, commands, here, explained(scenario.facts, basis, batch, context));
      }

      return {
        update(state) {
          scenario = chosen(place, state, scenario, list);
          settle(made, scenario, state);
          controls.heed(list, state, Object.keys(ENTRIES));
          if (!place.hasAttribute("data-refused")) draw();
        },
        full: () => controls.full(list),
        leave() {
          step.leave();
          cost.leave();
        },
      };
    },
  });

  Object.assign(rackline, { passViews: { passControls, settle, needed, chosen, moved, scenarioOf, explained, banded, binding, measured, told } });
})();
