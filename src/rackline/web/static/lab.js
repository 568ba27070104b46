// @ts-check
// Lab: what the lecture's mechanisms did when they were run small, beside what the library predicts of them.
"use strict";

(() => {
  const { el, parts, controls } = rackline;

  rackline.view({
    id: "lab",
    title: "Lab",
    question: "Do the lecture's mechanisms do what is said of them?",
    data: () => ["lab"],
    mount(place) {
      const { experiments, date, machine } = rackline.data.get("lab");
      const names = Object.keys(experiments);
      const chosen = controls.select({ key: "n", label: "Experiment", value: names[0], options: names.map((value) => ({ value, label: `${value}: ${experiments[value].verdict}` })) }, (kept) => change(kept));
      const list = [chosen];
      const drawing = el("div", { class: "figures" });
      const found = el("div");
      const claims = el("div");
      const table = parts.table([{ name: "quantity" }, { name: "predicted" }, { name: "measured" }, { name: "agrees" }, { name: "prediction from" }], "Readings");
      const commands = parts.commands();
      place.append(el("div", { class: "bench" }, controls.form(list), el("div", {}, drawing, found)), parts.section("Readings", table.element), claims, commands.element);
      const change = controls.frames(() => list, () => draw());
      /** @type {any} */
      let figure = null;
      let drawn = "";

      function draw() {
        const name = chosen.get();
        const one = experiments[name];
        if (drawn !== name) {
          drawn = name;
          if (figure) figure.leave();
          const { title, ...spec } = one.figure;
          const several = ["hconcat", "vconcat", "concat", "facet"].some((key) => key in spec);
          figure = new rackline.Figure({ name: `lab-${name}`, title: (title && title.text) || one.title, spec, height: 380, fixed: several });
          figure.element.classList.add("wide");
          drawing.replaceChildren(figure.element);
          figure.update({});
          found.replaceChildren(el("p", { text: one.idea }), el("ul", {}, one.findings.map((/** @type {string} */ text) => el("li", { text: `${text[0].toUpperCase()}${text.slice(1)}.` }))), el("p", { class: "quiet", text: `Stored on ${date}; ${one.ran}; ${machine}.` }));
          table.fill(one.rows);
          claims.replaceChildren(parts.claims(one.claims));
        }
        rackline.answer(`${one.shows[0].toUpperCase()}${one.shows.slice(1)}: ${one.verdict === "holds" ? "what was measured agrees with what was predicted" : `what was measured ${one.verdict}`}, in ${one.rows.filter((/** @type {string[]} */ row) => row[3] !== "-").length} readings.`);
        const { command, python } = parts.spelled("lab", [name], {});
        commands.update(command, python.replace("rl.lab(", "rl.experiment("));
        place.setAttribute("data-ready", "");
      }

      const board = controls.board(list, [], draw);
      return { ...board, leave: () => figure && figure.leave() };
    },
  });
})();
