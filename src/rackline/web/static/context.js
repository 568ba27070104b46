// @ts-check
// Context: what the cache of a long context costs, what sparse attention saves, where attention overtakes the rest.
"use strict";

(() => {
  const { text, pass, parts, controls } = rackline;
  const { passControls, settle, needed, chosen, moved, scenarioOf, explained, banded, measured, told } = rackline.passViews;
  const SHORTEST = 128;

  rackline.view({
    id: "context",
    title: "Context",
    question: "What does a long context cost?",
    data: (state) => [...needed(state), ...(state.v ? [scenarioOf({ s: state.v })] : [])],
    mount(place) {
      const site = rackline.data.get("site");
      let scenario = rackline.data.get(scenarioOf({}));
      /** @type {any} */
      let other = null;
      const made = passControls(site, (/** @type {boolean} */ kept) => change(kept), ["s", "b", "c", "on"]);
      made.v = controls.select(
        {
          key: "v",
          label: "Compared with",
          value: "",
          options: [{ value: "", label: "nothing" }, ...site.scenarios.map((/** @type {any} */ one) => ({ value: one.name, label: one.title }))],
        },
        (/** @type {boolean} */ kept) => change(kept),
      );
      const list = Object.values(made);
      const step = new rackline.Figure({
        name: "context-step",
        title: "Time of a decode step",
        spec: site.figures.context_step,
        hover: ["context_len", "whole", "seconds", "seconds"],
        measures: [["series", "series", ""], ["context_len", "context length", "whole"], ["seconds", "time", "seconds"]],
      });
      const fits = new rackline.Figure({
        name: "context-fits",
        title: "Sequences that fit beside the weights",
        spec: site.figures.context_fits,
        hover: ["context_len", "whole", "sequences", "whole"],
        measures: [["series", "deployment", ""], ["context_len", "context length", "whole"], ["sequences", "sequences", "whole"], ["held_bytes", "cache of a sequence on one chip", "bytes"]],
      });
      const why = parts.why();
      const commands = parts.commands();
      place.append(parts.bench(controls.form(list), [step.element, fits.element]), why.element, parts.claims(site.views.context.claims), commands.element);
      const change = controls.frames(() => list, () => draw());

      /** Time of what reads the cache, and of everything else [s]. */
      function split(/** @type {any} */ of, /** @type {any} */ time, /** @type {number} */ batch, /** @type {number} */ context) {
        const found = pass.breakdown(of, time, batch, context);
        let cache = 0;
        let rest = 0;
        for (const row of found.rows)
          if (/** @type {any} */ (row).readsCache) cache += row.seconds;
          else rest += row.seconds;
        return { cache, rest, seconds: found.seconds };
      }

      function draw() {
        if (moved(made, scenario) || made.v.get() !== (other ? other.facts.name : "")) return rackline.show();
        const [batch, context, basis] = [made.b.get(), made.c.get(), made.on.get()];
        const time = pass.timing(scenario, basis);
        const longest = scenario.facts.longestContext;
        const lengths = pass.spread(SHORTEST, longest, 61);
        /** @type {any[]} */
        const rows = [];
        /** @type {any[]} */
        const room = [];
        const names = ["the step", "reading the cache", "everything else"];
        for (const length of lengths) {
          const found = split(scenario, time, batch, length);
          [found.seconds, found.cache, found.rest].forEach((seconds, index) => {
            if (seconds > 0) rows.push({ series: names[index], context_len: length, seconds, style: index ? 1 : 0, place: index });
          });
          room.push({ series: scenario.facts.title, context_len: length, sequences: scenario.fits(length), held_bytes: scenario.held(length), style: 0, place: 0 });
        }
        if (other) {
          const theirs = pass.timing(other, basis);
          for (const length of pass.spread(SHORTEST, Math.min(longest, other.facts.longestContext), 61)) {
            rows.push({ series: other.facts.title, context_len: length, seconds: pass.seconds(other, theirs, batch, length), style: 0, place: 3 });
            room.push({ series: other.facts.title, context_len: length, sequences: other.fits(length), held_bytes: other.held(length), style: 0, place: 3 });
          }
        }
        const here = pass.breakdown(scenario, time, batch, context);
        const now = scenario.fits(context);
        const over = pass.crossing((length) => {
          const found = split(scenario, time, batch, length);
          return found.cache - found.rest;
        }, 1, longest);
        const full = pass.crossing((length) => batch - scenario.fits(length) - 0.5, SHORTEST, longest);
        const region = Number.isFinite(full) ? [{ low: full, high: longest, text: "does not fit" }] : [];
        const seen = measured(scenario, time);
        const y = rackline.axis([...rows, ...seen.rows].map((row) => row.seconds), { log: true });
        const z = rackline.axis(room.map((row) => row.sequences), { log: true });
        const x = rackline.axis([SHORTEST, longest], { log: true });
        const across = { x_range: [SHORTEST, longest], x_ticks: x.ticks.filter((tick) => tick >= SHORTEST && tick <= longest) };
        const series = [...names.map((name, index) => ({ name, place: index, dashed: index > 0 })), ...(other ? [{ name: other.facts.title, place: 3 }] : [])];
        step.name(series.filter((one) => rows.some((row) => row.series === one.name)));
        const crossed = over <= longest && Number.isFinite(over);
        step.update(
          { rows, marks: [{ context_len: context, seconds: here.seconds }, ...(crossed && over > SHORTEST ? [{ context_len: over }] : [])], regions: region, measured: seen.rows },
          { ...across, y_range: y.range, y_ticks: y.ticks },
          `Time of a decode step of ${text.whole(batch)} sequences against their context, on log axes: ${text.seconds(here.seconds)} at ${text.whole(context)} tokens.`,
        );
        step.note.textContent = region.length ? `Shaded: ${text.whole(batch)} sequences of more than ${text.whole(Math.floor(full))} tokens do not fit.` : crossed ? "The line stands where reading the cache takes as long as everything else." : "";
        if (seen.text) step.note.textContent += ` ${seen.text}`;
        fits.name([{ name: scenario.facts.title, place: 0 }, ...(other ? [{ name: other.facts.title, place: 3 }] : [])]);
        fits.update(
          { rows: room.filter((row) => row.sequences > 0), marks: now > 0 ? [{ context_len: context, sequences: now }] : [], regions: [] },
          { ...across, y_range: z.range, y_ticks: z.ticks },
          `Sequences that fit against their context, on log axes: ${text.whole(now)} at ${text.whole(context)} tokens.`,
        );
        fits.note.textContent = `The cache of one such sequence takes ${text.bytes(scenario.held(context))} on one chip.`;
        const turn = crossed
          ? over <= SHORTEST
            ? "Reading the cache takes longer than everything else at every length"
            : `From ${text.count(over)} tokens on, reading the cache takes longer than everything else`
          : `Reading the cache stays below everything else up to ${text.count(longest)} tokens`;
        rackline.answer(
          `At ${text.whole(context)} tokens a step of ${text.whole(batch)} sequences takes ${text.seconds(here.seconds)}, and ${text.whole(now)} such sequences fit. ${turn}.${other ? ` With ${other.facts.title}, the same batch takes ${text.seconds(pass.seconds(other, pass.timing(other, basis), batch, Math.min(context, other.facts.longestContext)))}.` : ""}${banded(time, here.seconds)}`,
        );
        return told(place, why, commands, here, explained(scenario.facts, basis, batch, context));
      }

      return {
        update(state) {
          scenario = chosen(place, state, scenario, list);
          settle(made, scenario, state);
          made.v.set(state.v);
          controls.heed(list, state, ["m", "k", "l", "q", "e"]);
          other = made.v.get() ? rackline.data.get(scenarioOf({ s: made.v.get() })) : null;
          if (!place.hasAttribute("data-refused")) draw();
        },
        full: () => controls.full(list),
        leave() {
          step.leave();
          fits.leave();
        },
      };
    },
  });
})();
