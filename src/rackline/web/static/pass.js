// @ts-check
// A pass of a scenario, computed with the functions that the library wrote out: the pass, its rows, what fits, the cost.
"use strict";

(() => {
  const RESOURCES = ["compute", "HBM", "scale-up", "scale-out", "overhead"];

  /** @typedef {{name: string, group: string, formula: string, compute: number, hbm: number, up: number, out: number,
   *   fixed: number, rest: number, seconds: number, binds: string, used: boolean}} PassRow */

  /** How a scenario is timed: "measured" (its calibration) or "blackboard" (ideal roofline). */
  const timing = (/** @type {any} */ scenario, /** @type {string} */ basis) =>
    (basis === "blackboard" && scenario.times[1]) || scenario.times[0];

  /** Time of a decode step [s]. */
  function seconds(/** @type {any} */ scenario, /** @type {any} */ time, /** @type {number} */ batch, /** @type {number} */ context) {
    const features = scenario.features(batch, context);
    return time.step(...time.facts.parameters.map((/** @type {string} */ name) => features[name] || 0));
  }

  /** All rows of a decode step, and the resources as if alone.
   * @returns {{rows: PassRow[], alone: Record<string, number>, seconds: number, binds: string}} */
  function breakdown(/** @type {any} */ scenario, /** @type {any} */ time, /** @type {number} */ batch, /** @type {number} */ context) {
    const features = scenario.features(batch, context);
    if (scenario.experts) [features.expert_tokens, features.experts_touched] = scenario.experts(features.group_tokens);
    const found = time.rows(...time.facts.rowFeatures.map((/** @type {string} */ name) => features[name] || 0));
    /** @type {PassRow[]} */
    const rows = time.facts.rows.map((/** @type {any} */ row, /** @type {number} */ index) => {
      const [first, second, fixed, whole] = found.slice(4 * index, 4 * index + 4);
      const longest = Math.max(first, second);
      const names = row.fabric ? ["scale-up", "scale-out"] : ["compute", "HBM"];
      return {
        ...row,
        compute: row.fabric ? 0 : first,
        hbm: row.fabric ? 0 : second,
        up: row.fabric ? first : 0,
        out: row.fabric ? second : 0,
        fixed,
        rest: Math.max(0, whole - fixed - longest) > 1e-12 * whole ? whole - fixed - longest : 0,
        seconds: whole,
        binds: fixed > longest ? "overhead" : names[second > first ? 1 : 0],
        used: true,
      };
    });
    /** @type {Map<string, PassRow>} */
    const fastest = new Map();
    for (const row of rows) {
      const choice = /** @type {any} */ (row).choice;
      if (!choice) continue;
      const other = fastest.get(choice);
      if (other && other.seconds <= row.seconds) row.used = false;
      else {
        if (other) other.used = false;
        fastest.set(choice, row);
      }
    }
    const used = rows.filter((row) => row.used && row.seconds > 0);
    const sum = (/** @type {keyof PassRow} */ key) => used.reduce((total, row) => total + Number(row[key]), 0);
    const alone = { compute: sum("compute"), HBM: sum("hbm"), "scale-up": sum("up"), "scale-out": sum("out"), overhead: sum("fixed") };
    const binds = RESOURCES.reduce((best, name) => (/** @type {any} */ (alone)[name] > /** @type {any} */ (alone)[best] ? name : best));
    const whole = time.step(...time.facts.parameters.map((/** @type {string} */ name) => features[name] || 0));
    return { rows: used, alone, seconds: whole, binds };
  }

  /** Where an increasing function of a positive number becomes positive; NaN where it does not between two ends. */
  function crossing(/** @type {(value: number) => number} */ gap, /** @type {number} */ low, /** @type {number} */ high) {
    if (!(gap(high) > 0)) return Infinity;
    if (gap(low) > 0) return low;
    for (let step = 0; step < 60; step++) {
      const mid = Math.sqrt(low * high);
      if (gap(mid) > 0) high = mid;
      else low = mid;
    }
    return high;
  }

  /** Values evenly spread on a log scale. */
  const spread = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ count) =>
    Array.from({ length: count }, (_, index) => low * (high / low) ** (index / (count - 1)));

  /** Batch sizes of a curve: whole ones, evenly spread on a log scale. */
  const batches = (/** @type {number} */ most) => [...new Set(spread(1, most, 61).map(Math.round))];

  Object.assign(rackline, { pass: { timing, seconds, breakdown, crossing, spread, batches, RESOURCES } });
})();
