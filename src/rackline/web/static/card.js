// @ts-check
// A decision in large type: each number with the band of measured servers and its limit, then the alternative.
"use strict";

(() => {
  const { el, text } = rackline;
  const ROOM = 1.06; // of the longest that a band shows

  /** A number as it is read in large type. @param {any} one @param {number} value */
  const written = (one, value) => text.of(one.kind, value).replace(/ /g, "\u00a0");

  /** The band from 0, with the prediction as a dot and the limit as a line. @param {any} one */
  function band(one) {
    if (one.low === null && one.limit === null) return null;
    const known = [one.value, one.high, one.limit].filter((value) => value !== null);
    const at = (/** @type {number} */ value) => `${(100 * value) / (ROOM * Math.max(...known))}%`;
    const track = el("span", { class: "track" });
    const put = (/** @type {string} */ name, /** @type {number} */ from, /** @type {number=} */ to) => {
      const mark = el("i", { class: name });
      mark.style.left = at(from);
      if (to !== undefined) mark.style.width = `calc(${at(to)} - ${at(from)})`;
      track.append(mark);
    };
    if (one.low !== null) {
      const { low, high, limit } = one;
      const edge = limit === null ? high : Math.min(Math.max(limit, low), high);
      const [kept, broken] = one.at_least && limit !== null ? [[edge, high], [low, edge]] : [[low, edge], [edge, high]];
      if (kept[1] > kept[0]) put("kept", kept[0], kept[1]);
      if (broken[1] > broken[0]) put("broken", broken[0], broken[1]);
    }
    put("dot", one.value);
    if (one.limit !== null) put("limit", one.limit);
    return el("div", { class: "drawn", "aria-hidden": "true" }, track);
  }

  /** What the band says, in words. @param {any} one */
  function ends(one) {
    const parts = [];
    if (one.low !== null) parts.push(`${written(one, one.low)} to ${written(one, one.high)}`);
    if (one.limit !== null) parts.push(`limit ${one.at_least ? "≥" : "≤"}\u00a0${written(one, one.limit)}`);
    return parts.join("; ");
  }

  /** @param {any} one */
  const large = (one) =>
    el(
      "div",
      { class: "large" },
      el("dt", { text: one.name }),
      el("dd", {}, el("b", { text: written(one, one.value) }), one.unit ? ` ${one.unit}` : "", band(one), el("small", {}, [ends(one), one.note].filter(Boolean).join("; "))),
    );

  /** A card that is filled with every answer. */
  function card() {
    const element = el("section", { class: "card", "aria-label": "The decision", hidden: true });
    const caveat = el("div", { class: "caveat wide" });
    return {
      element,
      caveat,
      /** @param {any} found  as the library makes it; empty where there is no decision @param {boolean=} estimated  numbers follow that replace these */
      update(found, estimated) {
        element.hidden = !found || !found.numbers;
        caveat.hidden = element.hidden;
        if (element.hidden) return;
        element.replaceChildren(
          el("p", { class: "deployed", text: found.deployment }),
          el("dl", {}, found.numbers.map(large)),
          el("p", { class: "alternative", text: found.alternative ? `Else ${found.alternative}.` : "" }),
        );
        caveat.replaceChildren(
          el("p", { text: `${estimated ? "Estimated" : found.basis[0].toUpperCase() + found.basis.slice(1)}; bands hold 90 % of measured servers of this kind.` }),
          found.caveat ? el("p", { text: `The alternative is ${found.caveat}` }) : "",
        );
      },
    };
  }

  Object.assign(rackline, { card });
})();
