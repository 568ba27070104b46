// @ts-check
// Pipeline: every schedule as it runs, its bubble and the activations it holds, against micro-batches.
"use strict";

(() => {
  const { text, parts, controls } = rackline;
  const NAMES = /** @type {Record<string, string>} */ ({ F: "forward", B: "backward", W: "gradient of weights" });

  rackline.view({
    id: "pipeline",
    title: "Pipeline",
    question: "What does a pipeline waste, and what does it save?",
    data: () => ["pipeline"],
    mount(place) {
      const site = rackline.data.get("site");
      const grid = rackline.data.get("pipeline");
      const names = Object.keys(grid.schedules);
      const schedule = controls.select({ key: "x", label: "Schedule", value: "1f1b" in grid.schedules ? "1f1b" : names[0], options: names.map((name) => ({ value: name, label: name })) }, (kept) => change(kept));
      const stages = controls.toggle({ key: "pp", label: "Stages", value: "4", options: grid.stages.map((/** @type {number} */ one) => ({ value: String(one), label: String(one) })) }, (kept) => change(kept));
      const micro = controls.toggle({ key: "m", label: "Micro-batches", value: "8", options: grid.microBatches.map((/** @type {number} */ one) => ({ value: String(one), label: String(one) })) }, (kept) => change(kept));
      const list = [schedule, stages, micro];
      const slots = new rackline.Figure({ name: "slots", title: "What each stage does when", spec: site.figures.pipeline_slots, measures: [["stage", "stage", ""], ["kind", "slot", ""], ["text", "micro-batch", ""], ["start", "begins", "number"], ["x2", "ends", "number"]] });
      const bubble = new rackline.Figure({ name: "bubble", title: "Share of the step that stages wait", spec: site.figures.pipeline_bubble, height: 300, hover: ["micro_batches", "whole", "bubble_share", "share"], measures: [["series", "schedule", ""], ["micro_batches", "micro-batches", "whole"], ["bubble_share", "bubble", "share"]] });
      const memory = new rackline.Figure({ name: "in-flight", title: "Activations that the fullest stage holds", spec: site.figures.pipeline_memory, height: 300, hover: ["micro_batches", "whole", "in_flight", "number"], measures: [["series", "schedule", ""], ["micro_batches", "micro-batches", "whole"], ["in_flight", "activations, in those of a whole stage", "number"]] });
      slots.element.classList.add("wide");
      const table = parts.table([{ name: "schedule" }, { name: "bubble", kind: "share" }, { name: "step (forward passes of a stage)", kind: "number" }, { name: "activations held (stages)", kind: "number" }, { name: "source" }], "All schedules");
      const commands = parts.commands(["Command line: a real model, whose first and last stages do more", "Python: the stages of this figure"]);
      place.append(parts.bench(controls.form(list), [slots.element, bubble.element, memory.element]), parts.section("Why: schedule by schedule", table.element), parts.claims(site.views.pipeline.claims), commands.element);
      const change = controls.frames(() => list, () => draw());
      const run = (/** @type {string} */ name, /** @type {any} */ pp, /** @type {any} */ m) => grid.runs[`${name}/${pp}/${m}`];

      function draw() {
        const [name, pp, m] = [schedule.get(), Number(stages.get()), Number(micro.get())];
        const here = run(name, pp, m);
        const height = 70 + 34 * pp;
        slots.place.style.height = `${height}px`;
        slots.options.height = height;
        if (slots.view) slots.view.height(height);
        const rows = here ? here.slots.map((/** @type {any} */ [stage, kind, micro, chunk, start, end]) => ({ stage, kind: NAMES[kind], text: `micro-batch ${micro + 1}${chunk ? `, chunk ${chunk + 1}` : ""}`, start, x2: end })) : [];
        const axis = rackline.axis([0, here ? here.step : 1], { zero: true, most: 8 });
        slots.update({ rows }, { x_range: axis.range, x_ticks: axis.ticks }, here ? `${name} with ${pp} stages and ${m} micro-batches: stages wait ${text.share(here.bubble)} of the step.` : "This schedule does not take this number of micro-batches.");
        slots.note.textContent = "Gradients of inputs and of weights take as long as a forward pass; schedules that do not part them show both as backward.";
        /** @type {any[]} */
        const bubbles = [];
        /** @type {any[]} */
        const held = [];
        for (const one of names)
          for (const count of grid.microBatches) {
            const found = run(one, pp, count);
            if (!found) continue;
            const look = { style: one === name ? 0 : 1, place: names.indexOf(one) };
            bubbles.push({ series: one, micro_batches: count, bubble_share: found.bubble, ...look });
            held.push({ series: one, micro_batches: count, in_flight: found.inFlight, ...look });
          }
        const seen = grid.measured
          .filter((/** @type {any} */ one) => one.schedule === name && one.stages === pp)
          .map((/** @type {any} */ one) => ({ ...one, bubble_share: one.share, text: `${text.share(one.share)} for ${one.model} with ${one.micro_batches} micro-batches` }));
        const x = { x_range: [grid.microBatches[0], grid.microBatches[grid.microBatches.length - 1]], x_ticks: grid.microBatches };
        const y = rackline.axis([...bubbles, ...seen].map((row) => row.bubble_share), { zero: true });
        const z = rackline.axis(held.map((row) => row.in_flight), { zero: true });
        const legend = names.map((one) => ({ name: one, place: names.indexOf(one), dashed: one !== name }));
        bubble.name(legend);
        memory.name(legend);
        bubble.note.textContent = seen.length ? `Triangles: from passes that were timed, ${seen.map((/** @type {any} */ one) => one.text).join("; ")}. ${seen[0].source}.` : "";
        bubble.update({ rows: bubbles, marks: here ? [{ micro_batches: m, bubble_share: here.bubble }] : [], regions: [], measured: seen }, { ...x, y_range: y.range, y_ticks: y.ticks }, `Share of the step that stages wait against micro-batches, for ${names.length} schedules with ${pp} stages.`);
        memory.update({ rows: held, marks: here ? [{ micro_batches: m, in_flight: here.inFlight }] : [], regions: [] }, { ...x, y_range: z.range, y_ticks: z.ticks }, `Activations held by the fullest stage against micro-batches, for ${names.length} schedules with ${pp} stages.`);
        table.fill(names.map((one) => ({ one, found: run(one, pp, m) })).map(({ one, found }) => (found ? [one, found.bubble, found.step, found.inFlight, grid.schedules[one]] : [one, "–", "–", "–", "does not take this number of micro-batches"])));
        const best = names.filter((one) => run(one, pp, m)).sort((a, b) => run(a, pp, m).bubble - run(b, pp, m).bubble)[0];
        rackline.answer(
          here
            ? `With ${pp} stages and ${m} micro-batches, ${name} waits ${text.share(here.bubble)} of a training step and holds the activations of ${text.number(here.inFlight)} whole ${here.inFlight === 1 ? "stage" : "stages"}. ${best === name ? "No other schedule waits less." : `${best} waits ${text.share(run(best, pp, m).bubble)}.`} ${seen.length ? `Timed passes gave ${seen.filter((/** @type {any} */ one) => one.micro_batches === m).map((/** @type {any} */ one) => text.share(one.share)).join(" and ") || "more"} where stages are equal here.` : "Stages are taken to be equal and messages to take no time."} In inference the stages are filled at once and nothing waits.`
            : `${name} does not take ${m} micro-batches with ${pp} stages.`,
        );
        const { command } = parts.spelled("train", ["llama-3.1-8b"], { on: "dgx-h100", chips: 8 * pp, global_batch: 8192 * m, layout: `tp=8,pp=${pp},micro_batch=1`, schedule: name });
        const virtual = grid.virtual[name];
        commands.update(
          command,
          [
            "from rackline.training.schedules import equal_stages, schedule",
            "",
            `one = schedule("${name}")`,
            `stages = equal_stages(one, ${pp}, 1.0, 1.0, 1.0, virtual_pp=${virtual})`,
            `one.run(${pp}, ${m}, stages, ${virtual}).bubble_fraction`,
          ].join("\n"),
        );
        place.setAttribute("data-ready", "");
      }

      return controls.board(list, [slots, bubble, memory], draw);
    },
  });
})();
