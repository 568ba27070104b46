// @ts-check
// Controls: sliders with exact entry, choices, switches. Each has a key of the address and a value at first.
"use strict";

(() => {
  const { el, text } = rackline;
  const STEPS = 480;
  let number = 0;

  /** `takes` says what is allowed where a text of an address is not, and nothing where it is; `full` is the value as
   * a text, also where it is the one at first.
   * @typedef {{key: string, get: () => any, set: (value: any) => void, write: () => string, full: () => string,
   *   takes: (given: string) => string, element: HTMLElement, initial: (value: any) => void,
   *   limits?: (low: number, high: number) => void}} Control */

  /** A slider, logarithmic unless said otherwise.
   * @param {{key: string, label: string, low: number, high: number, value: number, kind?: string, whole?: boolean,
   *   linear?: boolean, unit?: string, binary?: boolean, note?: string, stops?: number[]}} spec  stops: all values that there are
   * @param {(kept: boolean) => void} changed  called at each move, with true when the reader lets go
   * @returns {Control} */
  function slider(spec, changed) {
    const id = `control-${++number}`;
    let { low, high, value } = spec;
    let first = value;
    const log = !spec.linear;
    const kind = spec.kind || "count";
    const { stops } = spec;
    const steps = stops ? stops.length - 1 : STEPS;
    const range = el("input", { type: "range", id, min: 0, max: steps, step: 1 });
    const exact = el("input", { type: "text", inputmode: "decimal", "aria-label": `${spec.label}, exact`, autocomplete: "off", spellcheck: "false" });
    const element = el(
      "div",
      { class: "control slider", "data-key": spec.key },
      el("label", { for: id, text: spec.label }),
      el("div", { class: "exact" }, exact, spec.unit ? el("span", { text: spec.unit }) : null),
      range,
    );
    /** @param {number} part */
    const at = (part) => (stops ? stops[Math.round(part * steps)] : log ? low * (high / low) ** part : low + part * (high - low));
    const part = () => (stops ? stops.indexOf(value) / steps : log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    /** Three digits, or a round number of tokens: what a slider stops at. @param {number} found */
    function tidy(found) {
      if (stops) return found;
      if (spec.binary && found >= 2048) {
        const step = 2 ** Math.max(10, Math.floor(Math.log2(found)) - 4);
        return Math.min(Math.max(Math.round(found / step) * step, low), high);
      }
      const step = 10 ** (Math.floor(Math.log10(Math.abs(found) || 1)) - 2);
      const round = Number((Math.round(found / step) * step).toPrecision(6));
      return Math.min(Math.max(spec.whole ? Math.round(round) : round, low), high);
    }
    const written = () => (spec.binary ? text.tokens(value) : kind === "count" ? (spec.whole && value < 1e6 ? text.whole(value) : text.count(value)) : kind === "usd" ? text.round(value) : text.of(kind, value));
    function shown() {
      const place = Math.round(part() * steps);
      range.value = String(place);
      range.style.setProperty("--part", `${(100 * place) / steps}%`);
      range.setAttribute("aria-valuetext", `${written()}${spec.unit ? ` ${spec.unit}` : ""}`);
      if (document.activeElement !== exact) exact.value = written();
      exact.classList.remove("wrong");
      exact.removeAttribute("aria-invalid");
    }
    range.addEventListener("input", () => {
      value = tidy(at(Number(range.value) / steps));
      const place = range.value;
      shown();
      range.value = place; // the thumb stays where the hand is
      changed(false);
    });
    range.addEventListener("change", () => changed(true));
    function entered() {
      const found = text.parse(kind === "bytes" ? exact.value.replace(/B\s*$/, "") : exact.value, spec.binary);
      if (!(found >= low && found <= high) || (stops && !stops.includes(found))) {
        exact.classList.add("wrong");
        exact.setAttribute("aria-invalid", "true");
        exact.title = stops ? stops.join(", ") : `${text.of(kind, low)} to ${text.of(kind, high)}`;
        return;
      }
      exact.removeAttribute("title");
      value = spec.whole ? Math.round(found) : found;
      exact.value = written();
      shown();
      changed(true);
    }
    exact.addEventListener("change", entered);
    exact.addEventListener("blur", () => exact.classList.contains("wrong") || (exact.value = written()));
    shown();
    return {
      key: spec.key,
      element,
      get: () => value,
      set(given) {
        const found = given === undefined ? first : typeof given === "number" ? given : text.parse(given, spec.binary);
        value = !Number.isFinite(found) || (stops && !stops.includes(found)) ? first : Math.min(Math.max(found, low), high);
        shown();
      },
      initial(given) {
        first = given;
      },
      limits(least, most) {
        [low, high] = [least, most];
        value = Math.min(Math.max(value, low), high);
        shown();
      },
      full: () => String(Number(value.toPrecision(9))),
      write: () => (value === first ? "" : String(Number(value.toPrecision(9)))),
      takes(given) {
        const found = text.parse(given, spec.binary);
        return stops ? (stops.includes(found) ? "" : stops.join(", ")) : found >= low && found <= high ? "" : `${text.of(kind, low)} to ${text.of(kind, high)}`;
      },
    };
  }

  /** A choice among a few names.
   * @param {{key: string, label: string, options: {value: string, label: string}[], value: string}} spec
   * @param {(kept: boolean) => void} changed @returns {Control} */
  function select(spec, changed) {
    const id = `control-${++number}`;
    let first = spec.value;
    const box = el("select", { id, onchange: () => changed(true) });
    const fill = (/** @type {{value: string, label: string}[]} */ options) =>
      box.replaceChildren(...options.map((one) => el("option", { value: one.value, text: one.label })));
    fill(spec.options);
    box.value = first;
    return {
      key: spec.key,
      element: el("div", { class: "control", "data-key": spec.key }, el("label", { for: id, text: spec.label }), box),
      get: () => box.value,
      set(given) {
        box.value = given === undefined ? first : given;
        if (box.selectedIndex < 0) box.value = first;
      },
      initial(given) {
        first = given;
      },
      full: () => box.value,
      write: () => (box.value === first ? "" : box.value),
      takes: (given) => allowed(given, [...box.options].map((one) => one.value)),
    };
  }

  /** Two or three choices side by side.
   * @param {{key: string, label: string, options: {value: string, label: string}[], value: string}} spec
   * @param {(kept: boolean) => void} changed @returns {Control} */
  function toggle(spec, changed) {
    const name = `control-${++number}`;
    let first = spec.value;
    const inputs = spec.options.map((one) =>
      el("input", { type: "radio", name, id: `${name}-${one.value}`, value: one.value, onchange: () => changed(true) }),
    );
    const element = el(
      "fieldset",
      { class: "control toggle", "data-key": spec.key },
      el("legend", { text: spec.label }),
      el("div", { class: "choices" }, inputs.map((input, index) => [input, el("label", { for: input.id, text: spec.options[index].label })])),
    );
    const set = (/** @type {string} */ value) => inputs.forEach((input) => (input.checked = input.value === value));
    set(first);
    const get = () => (inputs.find((input) => input.checked) || inputs[0]).value;
    return {
      key: spec.key,
      element,
      get,
      set: (given) => set(spec.options.some((one) => one.value === given) ? given : first),
      initial(given) {
        first = given;
      },
      full: get,
      write: () => (get() === first ? "" : get()),
      takes: (given) => allowed(given, spec.options.map((one) => one.value)),
    };
  }

  /** A text, such as the name of a model, with names to choose from.
   * @param {{key: string, label: string, value: string, names?: () => Promise<string[]>, placeholder?: string, hint?: string}} spec
   * @param {(kept: boolean) => void} changed @returns {Control} */
  function entry(spec, changed) {
    const id = `control-${++number}`;
    let first = spec.value;
    const list = spec.names ? el("datalist", { id: `${id}-names` }) : null;
    if (spec.names) spec.names().then((names) => list.append(...names.map((name) => el("option", { value: name }))), () => {});
    const box = el("input", { type: "text", id, list: list && list.id, autocomplete: "off", spellcheck: "false", placeholder: spec.placeholder, onchange: () => changed(true) });
    box.value = first;
    return {
      key: spec.key,
      element: el("div", { class: "control", "data-key": spec.key }, el("label", { for: id, text: spec.label, title: spec.hint }), box, list),
      get: () => box.value.trim(),
      set: (given) => (box.value = given === undefined ? first : given),
      initial(given) {
        first = given;
      },
      full: () => box.value.trim(),
      write: () => (box.value.trim() === first ? "" : box.value.trim()),
      takes: () => "",
    };
  }

  /** What is allowed where a text is none of some. @param {string} given @param {string[]} values */
  const allowed = (given, values) => (values.includes(given) ? "" : values.filter(Boolean).join(", "));

  /** Say which parts of an address nothing was made of. @param {Control[]} list @param {State} state @param {string[]=} also  keys beside those of controls */
  function heed(list, state, also) {
    const known = new Map(list.map((one) => [one.key, one]));
    rackline.ignored(
      Object.entries(state).flatMap(([key, given]) => {
        const one = known.get(key);
        if (!one) return (also || []).includes(key) ? [] : [`${key}=${given} (known here: ${[...known.keys()].join(", ")})`];
        const fits = one.takes(given);
        return fits ? [`${key}=${given} (allowed: ${fits})`] : [];
      }),
    );
  }

  /** The values of all controls that are shown, for an address that means the same when defaults change. @param {Control[]} list */
  const full = (list) => Object.fromEntries(list.filter((one) => !one.element.hidden).map((one) => [one.key, one.full()]));

  /** Mark the control whose value was refused, and say why beside it; without a reason the mark goes.
   * @param {Control[]} list @param {string=} key @param {string=} reason */
  function mark(list, key, reason) {
    for (const one of list) {
      const wrong = Boolean(reason) && one.key === key;
      const old = one.element.querySelector(".problem");
      if (old) old.remove();
      if (wrong) one.element.append(el("p", { class: "problem", id: `wrong-${one.key}`, text: reason }));
      for (const box of one.element.querySelectorAll("input, select")) {
        box.toggleAttribute("aria-invalid", wrong);
        if (wrong) {
          box.setAttribute("aria-invalid", "true");
          box.setAttribute("aria-describedby", `wrong-${one.key}`);
        } else if (/^wrong-/.test(box.getAttribute("aria-describedby") || "")) box.removeAttribute("aria-describedby");
      }
    }
    return list.some((one) => one.key === key);
  }

  /** Controls as a form whose state is the address. Moves redraw at the next frame; letting go is a step of Back.
   * @param {Control[]} controls */
  function form(controls, /** @type {{text: string, close?: boolean}=} */ options) {
    return el("form", { class: "controls", "aria-label": (options && options.text) || "Controls", onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, controls.map((one) => one.element));
  }

  /** A scheduler of frames: `changed(kept)` draws at the next frame and writes the address when it is kept.
   * @param {() => Control[]} controls @param {() => void} draw */
  function frames(controls, draw) {
    let asked = false;
    return (/** @type {boolean} */ kept) => {
      if (kept) {
        const state = Object.fromEntries(controls().map((one) => [one.key, one.write()]));
        rackline.remember(state, true);
      }
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        const start = performance.now();
        draw();
        rackline.frames.push(performance.now() - start);
        if (rackline.frames.length > 500) rackline.frames.shift();
      });
    };
  }

  /** What a view of controls and figures does when its address changes, and when it is left.
   * @param {Control[]} list @param {any[]} figures @param {() => void} draw */
  function board(list, figures, draw) {
    return {
      update(/** @type {Record<string, string>} */ state) {
        list.forEach((one) => one.set(state[one.key]));
        heed(list, state);
        draw();
      },
      full: () => full(list),
      leave: () => figures.forEach((one) => one.leave()),
    };
  }

  let timer = 0;
  /** What follows a move once the hand rests: tables and texts, which need not keep up with each frame.
   * @param {() => void} act */
  function later(act) {
    clearTimeout(timer);
    timer = window.setTimeout(act, 90);
  }

  Object.assign(rackline, { later, controls: { slider, select, toggle, entry, form, frames, board, heed, full, mark }, frames: /** @type {number[]} */ ([]) });
})();
