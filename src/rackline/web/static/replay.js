// @ts-check
// A figure with the parameter `now` can be played: its bars are drawn up to that time.
"use strict";

(() => {
  const { el, text } = rackline;
  const STEPS = 600;
  const LASTS_S = 15; // a replay from the start to the end
  const JUMPS = 20; // where motion is unwanted, "play" is a step of this part

  /** The time at which a figure ends, if it can be played. @param {any} spec @returns {number} */
  const endOf = (spec) => ((spec.params || []).find((/** @type {any} */ one) => one.name === "now") || { value: NaN }).value;

  /** What a panel shows over time. @param {any} panel */
  function measureOf(panel) {
    const field = Object.keys(panel.data.values[0]).find((name) => !["series", "start_s"].includes(name)) || "";
    const { y } = panel.layer[0].encoding || panel.layer[0].layer[0].encoding;
    return { field, title: y.axis && y.axis.title ? y.axis.title : y.title || field, kind: field.endsWith("_s") && !field.includes("per_s") ? "seconds" : "number" };
  }

  /** Buttons and a slider that move the time of a figure. @param {DrawnFigure} figure @param {(now: number | null) => void} kept  is told where it was left; null at the end */
  function replay(figure, kept) {
    const still = window.matchMedia("(prefers-reduced-motion: reduce)");
    let end = endOf(figure.options.spec);
    let now = end;
    let frame = 0;
    const play = el("button", { type: "button", class: "play" });
    const range = el("input", { type: "range", min: 0, max: STEPS, step: 1, value: STEPS, "aria-label": "Time of the replay" });
    const counts = el("p", { class: "note" });
    const element = el("div", { class: "replay", role: "group", "aria-label": "Replay" }, play, el("div", { class: "slider" }, range), counts);

    /** How many requests are in each phase, by run. */
    function counted() {
      const panels = figure.options.spec.vconcat;
      if (panels) return moving(panels);

      /** @type {Map<string, Record<string, number>>} */
      const runs = new Map();
      for (const row of figure.all()) {
        const of = runs.get(row.run) || { waiting: 0, prefill: 0, decode: 0 };
        runs.set(row.run, of);
        if (row.start_s <= now && now < row.end_s) of[row.phase]++;
      }
      return [...runs].map(([run, of]) => `${run}: ${of.waiting} waiting, ${of.prefill} in prefill, ${of.decode} in decode`).join("; ");
    }

    /** What each panel shows at this time. @param {any[]} panels */
    function moving(panels) {
      return panels
        .map((panel) => {
          const { field, title, kind } = measureOf(panel);
          const rows = panel.data.values.filter((/** @type {any} */ row) => row.start_s <= now);
          const last = new Map(rows.map((/** @type {any} */ row) => [row.series, row[field]]));
          const said = [...last].map(([name, value]) => `${last.size > 1 ? `${name} ` : ""}${value === null ? "–" : kind === "number" ? text.round(value) : text.of(kind, value)}`);
          return `${title} ${said.join(", ")}`;
        })
        .join("; ");
    }

    function shown() {
      const done = now >= end;
      range.value = String(Math.round((STEPS * now) / end));
      range.style.setProperty("--part", `${(100 * now) / end}%`);
      range.setAttribute("aria-valuetext", text.seconds(now));
      play.textContent = frame ? "Pause" : still.matches ? "Step" : "Play";
      counts.textContent = done ? `All of ${text.seconds(end)}.` : `At ${text.seconds(now)}: ${counted()}.`;
    }

    /** @param {number} time */
    function move(time) {
      now = Math.min(Math.max(time, 0), end);
      figure.signals = { ...figure.signals, now };
      if (figure.view) figure.view.signal("now", now).run();
      shown();
    }

    function halt() {
      if (frame) cancelAnimationFrame(frame);
      frame = 0;
    }

    function left() {
      kept(now >= end ? null : now);
    }

    play.addEventListener("click", () => {
      if (frame) {
        halt();
        shown();
        return left();
      }
      const from = now >= end ? 0 : now;
      if (still.matches) {
        move(now >= end ? end / JUMPS : now + end / JUMPS);
        return left();
      }
      const began = performance.now();
      const turn = () => {
        const time = from + ((performance.now() - began) / 1000 / LASTS_S) * end;
        frame = time < end ? requestAnimationFrame(turn) : 0;
        move(time);
        if (!frame) left();
      };
      frame = requestAnimationFrame(turn);
      return undefined;
    });
    range.addEventListener("input", () => {
      halt();
      move((end * Number(range.value)) / STEPS);
    });
    range.addEventListener("change", left);
    still.addEventListener("change", shown);
    shown();
    return {
      element,
      /** The figure has other rows, or the address another time. @param {string | undefined} time */
      set(time) {
        halt();
        end = endOf(figure.options.spec);
        const found = Number(time);
        move(time !== undefined && Number.isFinite(found) ? found : end);
      },
      leave() {
        halt();
        still.removeEventListener("change", shown);
      },
    };
  }

  Object.assign(rackline, { replay: { of: replay, endOf } });
})();
