// @ts-check
// Views whose sliders move between answers that the library gave: their grids, interpolated, and what they show.
"use strict";

(() => {
  const { text, pass } = rackline;

  /** Where a point lies: places of the corners around it, each with its weight.
   * @param {Record<string, number[]>} axes @param {Record<string, number>} where @returns {[number, number][]} */
  function corners(axes, where) {
    /** @type {[number, number][]} */
    let found = [[0, 1]];
    for (const [key, values] of Object.entries(axes)) {
      const at = Math.min(Math.max(where[key], values[0]), values[values.length - 1]);
      let low = 0;
      while (low < values.length - 2 && at >= values[low + 1]) low++;
      const part = Math.log(at / values[low]) / Math.log(values[low + 1] / values[low]);
      found = found.flatMap(([place, weight]) => [[place * values.length + low, weight * (1 - part)], [place * values.length + low + 1, weight * part]]);
    }
    return found.filter(([, weight]) => weight > 0);
  }

  /** The number there: logarithms are interpolated, and where one is 0 the numbers. @param {(number | null)[]} values @param {[number, number][]} around */
  function read(values, around) {
    const near = around.map(([place, weight]) => ({ value: values[place], weight }));
    if (near.some((one) => one.value === null)) return NaN;
    const sum = (/** @type {(value: number) => number} */ act) => near.reduce((total, one) => total + one.weight * act(Number(one.value)), 0);
    return near.every((one) => Number(one.value) > 0) ? Math.exp(sum(Math.log)) : sum((value) => value);
  }

  /** All numbers of an object there. @param {Record<string, any[]>} columns @param {[number, number][]} around */
  const readAll = (columns, around) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, read(values, around)]));

  const ranged = (/** @type {number[]} */ x, /** @type {number[]} */ y, kind = "") => {
    const [across, up] = [rackline.axis(x, { log: true, kind }), rackline.axis(y, { log: true })];
    return { x_range: across.range, x_ticks: across.ticks, y_range: up.range, y_ticks: up.ticks };
  };

  const interpolated = (/** @type {any} */ grid) => `Interpolated between answers of the library, to ${text.share(grid.within)} at most.`;

  /** Where a prompt's cache should wait. @param {any} grid @param {any} asked */
  function tiers(grid, asked) {
    const { prompt, reuses, hold_time: hold } = asked;
    const around = corners(grid.axes, asked);
    const lines = Object.entries(grid.tiers).map(([name, columns]) => /** @type {any} */ ({ name, ...readAll(columns, around) }));
    const usd = (/** @type {any} */ line, /** @type {number} */ held) => (grid.usd(line.once_usd, line.hold_usd_per_s, line.retrieve_usd, held, reuses) * 1e6) / prompt;
    const best = (/** @type {number} */ held) => lines.reduce((least, line) => (usd(line, held) < usd(least, held) ? line : least));
    /** @type {{line: any, from: number}[]} */
    const spans = [];
    const scanned = pass.spread(1e-4, 1e11, 301);
    for (const [place, held] of scanned.entries()) {
      const last = spans[spans.length - 1];
      const line = best(held);
      if (last && last.line === line) continue;
      spans.push({ line, from: last ? pass.crossing((at) => usd(last.line, at) - usd(line, at), scanned[place - 1], held) : 0 });
    }
    const ends = spans.slice(1).map((one) => one.from);
    const times = pass.spread(Math.min(1, hold, ...ends) / 30, Math.max(86400, hold, ...ends) * 5, 81);
    const names = spans.map((one) => one.line.name).filter((name, place, all) => all.indexOf(name) === place);
    const highest = Math.max(...times.map((held) => usd(best(held), held)));
    const rows = names.flatMap((name, place) => {
      const line = lines.find((one) => one.name === name);
      return times.map((held) => ({ series: name, held_s: held, usd_per_mtok: usd(line, held), style: 0, place })).filter((row) => row.usd_per_mtok > 0 && row.usd_per_mtok < 30 * highest);
    });
    const here = best(hold);
    const cost = usd(here, hold);
    const draining = lines.filter((line) => grid.drains[line.name]);
    const rule = draining.reduce((near, line) => (grid.drainDistance(grid.drains[line.name], hold) < grid.drainDistance(grid.drains[near.name], hold) ? line : near));
    const then = spans.slice(1).map((one) => `${one.line.name} from ${text.seconds(one.from)}`);
    const words = `the cheapest is at first ${[spans[0].line.name, ...then].join(", ")}`;
    return {
      figures: {
        cost: {
          rows: { rows, marks: [...ends.map((end) => ({ held_s: end })), { held_s: hold, usd_per_mtok: cost }], regions: [], measured: [] },
          signals: ranged(times, rows.map((row) => row.usd_per_mtok).concat(cost), "seconds"),
          series: names.map((name, place) => ({ name, place })),
          description: `Cost of keeping the prompt against the time held, on log axes: ${words}.`,
          note: "Diamond: the time that is asked for. Dashed: another takes over.",
        },
      },
      answer: `Held for ${text.seconds(hold)} and brought back ${reuses === 1 ? "once" : `${text.whole(reuses)} times`}, the cache of ${text.whole(prompt)} tokens (${text.bytes(read(grid.entry_bytes, around))}) waits most cheaply in ${here.name}, at ${text.usd(cost)} per million tokens. ${words[0].toUpperCase()}${words.slice(1)}. The drain rule names ${rule.name}. ${interpolated(grid)}`,
      columns: [{ name: "where" }, { name: "cost per million tokens", kind: "usd" }, { name: "time to load", kind: "seconds" }, { name: "time to drain", kind: "seconds" }, { name: "cheapest" }],
      table: [...lines].sort((a, b) => usd(a, hold) - usd(b, hold)).map((line) => [
        line.name,
        usd(line, hold),
        line.fetch_s,
        grid.drains[line.name] ?? "–",
        spans.flatMap((one, place) => (one.line === line ? [place + 1 < spans.length ? `${text.seconds(one.from)} to ${text.seconds(spans[place + 1].from)}` : `from ${text.seconds(one.from)}`] : [])).join(", ") || "–",
      ]),
      numbers: { usd_per_mtok: cost, name: here.name, ends },
    };
  }

  /** What public prices reveal. @param {any} grid @param {any} asked */
  function prices(grid, asked) {
    const sheet = grid.sheets[asked.sheets];
    const known = asked.margin !== undefined;
    const around = known ? corners(grid.axes, { price_over_cost: grid.priceOverCost(asked.margin, asked.utilisation) }) : /** @type {[number, number][]} */ ([[0, 1]]);
    const ends = sheet[known ? "asSet" : "unknown"].map((/** @type {any} */ one) => {
      const { quantity, unit, method, note, ...columns } = one;
      return { quantity, unit, method, note, .../** @type {any} */ (readAll(columns, around)) };
    });
    const find = (/** @type {string} */ name, method = "") => ends.find((/** @type {any} */ one) => one.quantity === name && (!method || one.method.startsWith(method)));
    const active = find("active_params");
    const cache = find("kv_bytes_per_token", "context step") || find("kv_bytes_per_token");
    const middle = (/** @type {any} */ one) => Math.sqrt(one.likely_low * one.likely_high);
    const kinds = /** @type {Record<string, string>} */ ({ elements: "count", bytes: "bytes", tokens: "count", fraction: "share", seconds: "seconds", usd: "usd" });
    const written = (/** @type {any} */ one, /** @type {number} */ value) => text.of(kinds[one.unit] || "number", value);
    /** @type {any[]} */
    const rows = [];
    /** @type {any[]} */
    const marks = [];
    if (active && cache) {
      marks.push({ active_params: middle(active), kv_bytes_per_token: middle(cache) });
      for (const [place, ends_] of [["low", "high"], ["likely_low", "likely_high"]].entries())
        for (const end of ends_) {
          const look = { style: place ? 0 : 1, place: 0 };
          rows.push({ series: place ? "likely" : "possible", active_params: active[end], kv_bytes_per_token: middle(cache), ...look });
        }
      for (const [place, ends_] of [["low", "high"], ["likely_low", "likely_high"]].entries())
        for (const end of ends_) rows.push({ series: place ? "likely " : "possible ", active_params: middle(active), kv_bytes_per_token: cache[end], style: place ? 0 : 1, place: 0 });
    }
    const seen = sheet.known.map((/** @type {any} */ one) => ({ ...one, text: `${one.model}: ${text.count(one.active_params)} active parameters, ${text.bytes(one.kv_bytes_per_token)} of a token` }));
    const given = known ? `At a margin of ${text.share(asked.margin)} and a utilisation of ${text.share(asked.utilisation)}` : "With margin and utilisation unknown";
    const said = (/** @type {any} */ one, /** @type {string} */ what) => (one ? `${what} of likely ${written(one, one.likely_low)} to ${written(one, one.likely_high)} (${written(one, one.low)} to ${written(one, one.high)} for sure)` : "");
    return {
      figures: {
        map: {
          rows: { rows, marks, regions: [], measured: seen },
          signals: ranged([...rows, ...seen].map((row) => row.active_params), [...rows, ...seen].map((row) => row.kv_bytes_per_token)),
          series: [{ name: "likely", place: 0 }, { name: "possible", place: 0, dashed: true }],
          description: `Active parameters against the cache of a token that the prices allow, on log axes. ${said(active, "Active parameters")}.`,
          note: `Diamond: the middle of what is likely. Chip, precision, rent and shares of the peaks stay unknown.${seen.length ? ` Triangles: what is known of ${seen[0].model}, with one byte or two for each element of its cache.` : ""}`,
        },
      },
      answer: `${given}, ${asked.sheets} (${sheet.date}) ${active ? `points to active parameters ${said(active, "").trim()}` : "does not say how many active parameters there are"}${cache ? `, and to a cache of a token ${said(cache, "").trim()}` : ""}.${known ? ` ${interpolated(grid)}` : ""}`,
      columns: [{ name: "quantity" }, { name: "read from" }, { name: "possible" }, { name: "likely" }, { name: "what it rests on" }],
      table: ends.map((/** @type {any} */ one) => [one.quantity.replace(/_/g, " "), one.method, `${written(one, one.low)} to ${written(one, one.high)}`, `${written(one, one.likely_low)} to ${written(one, one.likely_high)}`, one.note]),
      numbers: active ? { low: active.low, high: active.high, likely_low: active.likely_low, likely_high: active.likely_high } : {},
    };
  }

  /** How much longer than Chinchilla one should train. @param {any} grid @param {any} asked */
  function overTraining(grid, asked) {
    const used = read(grid.used, corners(grid.uses, asked));
    const around = corners(grid.axes, { used });
    const best = /** @type {any} */ (readAll(grid.optimum, around));
    const shown = grid.sizes.map((/** @type {number} */ size, /** @type {number} */ place) => ({ size, place, tokens: grid.tokens[place] })).filter((/** @type {any} */ one) => grid.flop(one.size, one.tokens, used) < 20 * best.flop);
    const parts = /** @type {[string, (one: any) => number][]} */ ([["whole life", (one) => grid.flop(one.size, one.tokens, used)], ["training", (one) => grid.flop(one.size, one.tokens, 0)], ["use", (one) => grid.flop(one.size, 0, used)]]);
    const costs = parts.flatMap(([series, flop], place) => shown.map((/** @type {any} */ one) => ({ series, active_params: one.size, flop: flop(one), style: place ? 1 : 0, place })));
    const qualities = shown.map((/** @type {any} */ one) => ({ series: "same quality", active_params: one.size, tokens: one.tokens, style: 0, place: 0 }));
    const { computeOptimal } = grid;
    const sizes = shown.map((/** @type {any} */ one) => one.size);
    const all = [...sizes, computeOptimal.active_params, best.active_params];
    const words = `${text.count(best.active_params)} active parameters on ${text.count(best.tokens)} tokens`;
    const counts = qualities.map((/** @type {any} */ row) => row.tokens).concat(computeOptimal.tokens, best.tokens);
    const span = ranged(all, counts);
    const within = (/** @type {number} */ value, /** @type {number[]} */ range) => range[0] < value && value < range[1];
    const trained = grid.trained.filter((/** @type {any} */ one) => within(one.active_params, span.x_range) && within(one.tokens, span.y_range));
    const plain = `${text.count(computeOptimal.active_params)} on ${text.count(computeOptimal.tokens)} tokens`;
    return {
      figures: {
        lifetime: {
          rows: { rows: costs, marks: [{ active_params: best.active_params, flop: best.flop }], regions: [], measured: [] },
          signals: ranged(all, costs.map((/** @type {any} */ row) => row.flop)),
          series: parts.map(([name], place) => ({ name, place, dashed: place > 0 })),
          description: `FLOP over the whole life against active parameters, on log axes: least with ${words}.`,
          note: "Diamond: least over the whole life.",
        },
        quality: {
          rows: { rows: qualities, marks: [{ active_params: best.active_params, tokens: best.tokens }, computeOptimal], regions: [], measured: trained },
          signals: span,
          series: [{ name: "same quality", place: 0 }],
          description: `Tokens of pre-training against active parameters at one loss, on log axes: ${words} are best over life, ${plain} for training alone.`,
          note: `Diamonds: least over the whole life (${words}), and least training (${plain}).${trained.length ? ` Triangles: models as they were trained (${trained.map((/** @type {any} */ one) => one.text).join(", ")}).` : ""}`,
        },
      },
      answer: `With ${text.count(asked.traffic)} tokens a second for ${text.number(asked.months)} ${asked.months === 1 ? "month" : "months"}, ${words} reach the quality of ${asked.quality_of} at the least cost over the whole life, ${text.usd(best.usd)}: ${text.number(best.overtraining_factor)} times as many tokens as 20 for each parameter. The model that is cheapest to train (${plain}) would cost ${text.number(best.compute_optimal_over_optimum)} times as much over its life. Sizes of ${text.count(best.flat_low)} to ${text.count(best.flat_high)} cost at most ${text.share(grid.flat)} more. ${interpolated(grid)}`,
      columns: [{ name: "what" }, { name: "least over the whole life" }, { name: "least training" }],
      table: [
        ["active parameters", text.count(best.active_params), text.count(computeOptimal.active_params)],
        ["tokens of pre-training", text.count(best.tokens), text.count(computeOptimal.tokens)],
        ["cost over life", text.usd(best.usd), text.usd(best.usd * best.compute_optimal_over_optimum)],
      ],
      numbers: best,
    };
  }

  const MEASURES = /** @type {Record<string, any>} */ ({
    "tiers-cost": { hover: ["held_s", "seconds", "usd_per_mtok", "usd"], measures: [["series", "where", ""], ["held_s", "time held", "seconds"], ["usd_per_mtok", "$ per million tokens", "usd"]] },
    "prices-map": { measures: [["series", "interval", ""], ["active_params", "active parameters", "count"], ["kv_bytes_per_token", "cache of a token", "bytes"]] },
    "over-training-lifetime": { hover: ["active_params", "count", "flop", "number"], measures: [["series", "what", ""], ["active_params", "active parameters", "count"], ["flop", "FLOP", ""]] },
    "over-training-quality": { hover: ["active_params", "count", "tokens", "count"], measures: [["active_params", "active parameters", "count"], ["tokens", "tokens", "count"]] },
  });

  Object.assign(rackline, { grids: { measures: MEASURES, moved: { tiers, prices, "over-training": overTraining } } });
})();
