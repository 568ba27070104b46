// @ts-check
// Numbers as people read them, and numbers that people write.
"use strict";

(() => {
  const SI = /** @type {[number, string][]} */ ([
    [1e15, "P"],
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]);
  const TIMES = /** @type {[number, number, string][]} */ ([
    [1e-6, 1e-9, "ns"],
    [1e-3, 1e-6, "µs"],
    [1, 1e-3, "ms"],
    [60, 1, "s"],
    [3600, 60, "min"],
    [86400, 3600, "h"],
    [365.25 * 86400, 86400, "d"],
    [Infinity, 365.25 * 86400, "y"],
  ]);

  /** Three significant digits, without an exponent. @param {number} value @param {number} digits */
  function round(value, digits = 3) {
    if (value === 0) return "0";
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    const text = value.toFixed(Math.min(places, 12));
    const short = text.includes(".") ? text.replace(/\.?0+$/, "") : String(Number(value.toPrecision(digits)));
    return short.replace(/\B(?=(\d{3})+(?!\d))/g, (comma, _1, at, whole) => (whole.lastIndexOf(".", at) < 0 ? "," : comma));
  }

  const DURATIONS = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 10 * 86400, 100 * 86400, 365.25 * 86400, 3652.5 * 86400, 36525 * 86400];

  /** @param {number} value @param {string} unit @param {string} giga */
  function si(value, unit, giga = "G") {
    const size = Math.abs(value);
    if (size >= 1e18) return `${value.toExponential(2).replace("e+", "e")}${unit ? ` ${unit}` : ""}`;
    for (const [factor, prefix] of SI)
      if (size >= factor * 0.9995) return `${round(value / factor)}${unit ? " " : ""}${prefix === "G" ? giga : prefix}${unit}`;
    return `${round(value)}${unit ? ` ${unit}` : ""}`;
  }

  const text = {
    round,
    /** @param {number} value */
    seconds(value) {
      if (!Number.isFinite(value)) return value > 0 ? "for ever" : "-";
      if (value === 0) return "0 s";
      for (const [below, factor, unit] of TIMES) if (Math.abs(value) < below * (1 - 5e-4)) return `${round(value / factor)} ${unit}`;
      return `${round(value)} s`;
    },
    /** @param {number} value */
    count: (value) => (Number.isFinite(value) ? si(value, "", "B") : value > 0 ? "any number" : "-"),
    /** All digits. @param {number} value */
    whole: (value) => (Number.isFinite(value) ? Math.round(value).toLocaleString("en-US") : "any number"),
    /** @param {number} value */
    bytes: (value) => (Number.isFinite(value) ? si(value, "B") : "-"),
    /** @param {number} value */
    rate: (value) => (Number.isFinite(value) ? si(value, "B/s") : "-"),
    /** @param {number} value */
    usd: (value) => (Number.isFinite(value) ? (Math.abs(value) >= 1e4 ? `$${si(value, "", "B")}` : `$${round(value)}`) : "-"),
    /** @param {number} value */
    share: (value) => (Number.isFinite(value) ? `${round(100 * value)} %` : "-"),
    /** @param {number} value */
    number: (value) => (Number.isFinite(value) ? round(value, 4) : "-"),
    /** Tokens as they are written: 4k for 4,096. @param {number} value */
    tokens(value) {
      if (value >= 1024 && value % 1024 === 0) return value >= 1048576 && value % 1048576 === 0 ? `${value / 1048576}M` : `${value / 1024}k`;
      return text.whole(value);
    },
    /** What somebody typed: 4k (1024 each where lengths are meant), 2.5M, 1,000, 50 %, 5min.
     * @param {string} given @param {boolean} binary */
    parse(given, binary = false) {
      const named = /^\s*([\d.,]+)\s*(%|ns|µs|us|ms|s|min|h|d|y)\s*$/.exec(given);
      if (named) return Number(named[1].replace(/,/g, "")) * /** @type {Record<string, number>} */ ({ "%": 0.01, ns: 1e-9, "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, y: 365.25 * 86400 })[named[2]];
      const found = /^\s*\$?\s*([\d.,]+(?:e[+-]?\d+)?)\s*(ki?|mi?|gi?|b|t)?\s*$/i.exec(given);
      if (!found) return NaN;
      const unit = (found[2] || "").toLowerCase();
      const power = { k: 1, m: 2, g: 3, b: 3, t: 4 }[unit[0]] || 0;
      const step = unit.endsWith("i") || (binary && (unit === "k" || unit === "m")) ? 1024 : 1000;
      return Number(found[1].replace(/,/g, "")) * step ** power;
    },
    /** @param {string} kind @param {number} value @returns {string} */
    of: (kind, value) => (/** @type {any} */ (text)[kind] || text.number)(value),
  };

  /** Ends and ticks of an axis that holds values; ends are round, so that the axis rests while they move a little.
   * @param {number[]} values @param {{log?: boolean, most?: number, zero?: boolean, kind?: string}} options */
  function axis(values, options = {}) {
    const kept = values.filter((value) => Number.isFinite(value) && (!options.log || value > 0));
    if (!kept.length) kept.push(1, 10);
    let low = Math.min(...kept);
    let high = Math.max(...kept);
    if (options.log) {
      low = below(low * 1.0001);
      high = above(high * 0.9999);
      if (!(high > low)) high = above(low * 1.01);
      const ticks = options.kind === "seconds" && high > 600 ? DURATIONS.filter((one) => one >= low && one <= high) : [];
      const every = Math.ceil(ticks.length / (options.most || 7));
      return { range: [low, high], ticks: ticks.length > 2 ? ticks.filter((_, index) => index % every === 0) : logTicks(low, high, options.most || 7) };
    }
    if (options.zero) low = Math.min(low, 0);
    if (!(high > low)) high = low + (Math.abs(low) || 1);
    const step = linearStep((high - low) / (options.most || 6));
    low = Math.floor(low / step + 1e-9) * step;
    high = Math.ceil(high / step - 1e-9) * step;
    const ticks = [];
    for (let index = 0; low + index * step <= high * (1 + 1e-12) + 1e-300; index++) ticks.push(Number((low + index * step).toPrecision(12)));
    return { range: [low, high], ticks };
  }

  /** @param {number} least */
  function linearStep(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9)) || least;
  }

  /** @param {number} value @param {number[]} factors */
  function grid(value, factors) {
    const power = 10 ** Math.floor(Math.log10(value));
    return factors.map((factor) => Number((factor * power).toPrecision(12)));
  }

  /** @param {number} value */
  const below = (value) => Math.max(...grid(value, [0.5, 1, 2, 5]).filter((one) => one <= value * (1 + 1e-9)));
  /** @param {number} value */
  const above = (value) => Math.min(...grid(value, [1, 2, 5, 10]).filter((one) => one >= value * (1 - 1e-9)));

  /** @param {number} low @param {number} high @param {number} most */
  function logTicks(low, high, most) {
    /** @type {number[]} */
    let found = [];
    for (const factors of [[1, 2, 5], [1, 3], [1]]) {
      found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const factor of factors) {
          const value = Number((factor * 10 ** power).toPrecision(12));
          if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) found.push(value);
        }
      if (found.length <= most) return found;
    }
    const every = Math.ceil(found.length / most);
    return found.filter((_, index) => index % every === 0);
  }

  Object.assign(rackline, { text, axis, above, below });
})();
