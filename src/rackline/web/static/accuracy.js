// @ts-check
// Accuracy: in which band nine of ten measurements lay around their prediction, by what was measured on what.
"use strict";

(() => {
  const { text, parts, controls } = rackline;
  const TITLES = /** @type {Record<string, string>} */ ({
    tpot_s: "time per output token", ttft_s: "time to first token", request_s: "whole request", token_s: "token of a static batch", prefill_s: "prefill of a static batch", total_s: "whole static batch",
    output_tokens_per_s: "largest throughput", served_tokens_per_s: "throughput of a server", step_s: "training step", pools_tpot_s: "time per output token, two pools", pools_ttft_s: "time to first token, two pools", pools_request_s: "whole request, two pools",
  });

  rackline.view({
    id: "accuracy",
    title: "Accuracy",
    question: "How close do predictions come to measurements?",
    data: () => ["accuracy", "parity"],
    mount(place) {
      const site = rackline.data.get("site");
      const { bands } = rackline.data.get("accuracy");
      const of = (/** @type {string} */ field) => [...new Set(bands.map((/** @type {any} */ one) => one[field]))].filter((one) => one !== "*").sort();
      const metrics = of("metric");
      const metric = controls.select({ key: "metric", label: "Measured", value: "tpot_s", options: metrics.map((one) => ({ value: one, label: TITLES[one] || one })) }, (kept) => change(kept));
      const any = (/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ field) => controls.select({ key, label, value: "", options: [{ value: "", label: "all" }, ...of(field).map((one) => ({ value: one, label: one }))] }, (kept) => change(kept));
      const [stack, kind, chip] = [any("stack", "Stack", "stack"), any("kind", "Kind of model", "kind"), any("chip", "Chip", "chip")];
      const order = controls.toggle({ key: "by", label: "First", value: "width", options: [{ value: "width", label: "Worst" }, { value: "cases", label: "Most cases" }] }, (kept) => change(kept));
      const cases = rackline.data.get("parity").rows;
      const versions = [...new Set(cases.map((/** @type {any} */ one) => `${one.stack} ${one.version}`))].filter((one) => !one.endsWith(" ")).sort();
      const version = controls.select({ key: "version", label: "Version", value: "", options: [{ value: "", label: "all" }, ...versions.map((one) => ({ value: one, label: one }))] }, (kept) => change(kept));
      const list = [metric, stack, kind, chip, version, order];
      const columns = [["text", "case", ""], ["measured", "measured", ""], ["predicted", "predicted", ""], ["ratio", "predicted / measured", "number"]];
      const parity = Object.fromEntries(["seconds", "count"].map((one) => [one, new rackline.Figure({ name: `parity-${one}`, title: "Published cases: predicted over measured", spec: site.figures[`parity_${one}`], height: 420, measures: columns.map((column) => (column[2] || column[0] === "text" ? column : [column[0], column[1], one])) })]));
      const worst = parts.table([{ name: "case" }, { name: "measured" }, { name: "predicted" }, { name: "predicted / measured", kind: "number" }, { name: "source" }], "Published cases, worst first");
      const figure = new rackline.Figure({ name: "bands", title: "Nine of ten measurements over their prediction", spec: site.figures.accuracy_bands, measures: [["group", "measured on", ""], ["start", "from", "number"], ["x2", "to", "number"], ["cases", "cases", "whole"], ["models", "models", "whole"]] });
      figure.element.classList.add("wide");
      const table = parts.table([{ name: "measured on" }, { name: "from", kind: "number" }, { name: "to", kind: "number" }, { name: "cases", kind: "whole" }, { name: "models", kind: "whole" }], "Bands");
      const commands = parts.commands();
      place.append(parts.bench(controls.form(list), [figure.element, ...Object.values(parity).map((one) => one.element)]), parts.section("Group by group", table.element), parts.section("Published cases, worst first", worst.element), commands.element);
      const change = controls.frames(() => list, () => draw());

      function draw() {
        const name = metric.get();
        const width = (/** @type {any} */ one) => Math.log(one.high / one.low);
        const found = bands
          .filter((/** @type {any} */ one) => one.metric === name && (!stack.get() || one.stack === stack.get()) && (!kind.get() || one.kind === kind.get()) && (!chip.get() || one.chip === chip.get()))
          .sort((/** @type {any} */ a, /** @type {any} */ b) => (order.get() === "width" ? width(b) - width(a) : b.cases - a.cases));
        const rows = found.map((/** @type {any} */ one) => ({ group: one.group, kind: TITLES[name] || name, text: `${one.cases} cases of ${one.models} models`, start: one.low, x2: one.high, cases: one.cases, models: one.models }));
        const height = 80 + 22 * Math.max(rows.length, 1);
        figure.place.style.height = `${height}px`;
        figure.options.height = height;
        if (figure.view) figure.view.height(height);
        const axis = rackline.axis([1, ...rows.map((/** @type {any} */ row) => row.x2)], { zero: true });
        figure.update({ rows }, { x_range: axis.range, x_ticks: axis.ticks }, `Bands of measured over predicted ${TITLES[name] || name} for ${rows.length} groups.`);
        figure.note.textContent = "1 is a perfect prediction. Each band holds 90 % of the measurements, of models that no fit has seen.";
        table.fill(rows.map((/** @type {any} */ row) => [row.group, row.start, row.x2, row.cases, row.models]));
        const error = (/** @type {any} */ one) => Math.abs(Math.log(one.predicted / one.measured));
        const unit = name.includes("tokens_per_s") ? "count" : "seconds";
        const mine = cases
          .filter((/** @type {any} */ one) => one.metric === name && (!stack.get() || one.stack === stack.get()) && (!chip.get() || one.chip === chip.get()) && (!version.get() || `${one.stack} ${one.version}` === version.get()))
          .map((/** @type {any} */ one) => ({ ...one, ratio: one.predicted / one.measured, text: `${one.model} on ${one.chips} ${one.chip}, ${one.stack} ${one.version}`.trim() }))
          .sort((/** @type {any} */ a, /** @type {any} */ b) => error(b) - error(a));
        const stacks = [...new Set(cases.map((/** @type {any} */ one) => one.stack))];
        const ends = rackline.axis(mine.flatMap((/** @type {any} */ one) => [one.measured, one.predicted]), { log: true });
        const shown = parity[unit];
        for (const one of Object.values(parity)) one.element.hidden = one !== shown || !mine.length;
        shown.name([...new Set(mine.map((/** @type {any} */ one) => one.stack))].map((one) => ({ name: String(one), place: stacks.indexOf(one) % 8 })));
        shown.update(
          { rows: mine.map((/** @type {any} */ one) => ({ ...one, place: stacks.indexOf(one.stack) % 8, text: `${one.text}: ${text.number(one.ratio)}` })), ends: ends.range.map((at) => ({ measured: at, predicted: at, low: 0.8 * at, high: 1.2 * at })) },
          { x_range: ends.range, x_ticks: ends.ticks, y_range: ends.range, y_ticks: ends.ticks },
          `Predicted over measured ${TITLES[name] || name} of ${mine.length} published cases.`,
        );
        shown.note.textContent = "Band: within 20 %. These cases ship with the library; the bands above are of many more.";
        worst.fill(mine.map((/** @type {any} */ one) => [one.text, text.of(unit, one.measured), text.of(unit, one.predicted), one.ratio, one.source]));
        const all = bands.find((/** @type {any} */ one) => one.metric === name && one.group === "all stacks");
        rackline.answer(
          `${all ? `Nine of ten measurements of the ${TITLES[name] || name} lay between ${text.number(all.low)} and ${text.number(all.high)} times what was predicted, in ${text.whole(all.cases)} cases of ${all.models} models that no fit had seen. ` : ""}${rows.length ? `${order.get() === "width" ? "Furthest apart" : "Measured most often"}: ${rows[0].group}, ${text.number(rows[0].start)} to ${text.number(rows[0].x2)}.` : "Nothing was measured there."}`,
        );
        commands.update(
          "rackline validate \"$(python -c 'from rackline.validation.published import published; print(published())')\"",
          "import rackline as rl\nfrom rackline.validation.published import published\n\nrl.validate(str(published()))",
        );
        place.setAttribute("data-ready", "");
      }

      return controls.board(list, [figure, ...Object.values(parity)], draw);
    },
  });
})();
