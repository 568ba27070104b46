// @ts-check
// Lecture: the ledger of claims, and a walk through its seven chapters, each claim to the view that shows it.
"use strict";

(() => {
  const { el, parts, controls } = rackline;

  rackline.view({
    id: "lecture",
    title: "Lecture",
    question: "Is what the lecture says true?",
    data: () => ["ledger"],
    mount(place) {
      const ledger = rackline.data.get("ledger");
      const all = Object.values(ledger.claims);
      const chapters = Object.entries(ledger.chapters).map(([number, title]) => ({ value: number, label: `${Number(number) <= 7 ? `${number}. ` : ""}${title}` }));
      const verdicts = [...new Set(all.map((one) => one.verdict))];
      const chapter = controls.select({ key: "n", label: "Chapter", value: "1", options: [...chapters, { value: "all", label: "All chapters" }] }, (kept) => change(kept));
      const verdict = controls.select({ key: "verdict", label: "Verdict", value: "", options: [{ value: "", label: "any" }, ...verdicts.map((one) => ({ value: one, label: one }))] }, (kept) => change(kept));
      const words = controls.entry({ key: "q", label: "Words", value: "" }, (kept) => change(kept));
      const list = [chapter, verdict, words];
      const cards = el("div", { class: "claims" });
      const walk = el("ol", { class: "walk" });
      const heading = el("h2");
      const commands = parts.commands();
      const before = el("button", { type: "button", text: "← Chapter before", onclick: () => turn(-1) });
      const after = el("button", { type: "button", text: "Next chapter →", onclick: () => turn(1) });
      place.append(el("div", { class: "bench" }, controls.form(list), el("div", {}, walk, heading, cards, el("p", { class: "turn" }, before, after))), commands.element);
      const change = controls.frames(() => list, () => draw());

      function turn(/** @type {number} */ by) {
        chapter.set(String(Math.min(Math.max(Number(chapter.get()) + by || 1, 1), 7)));
        change(true);
        heading.scrollIntoView({ block: "center" });
      }

      function draw() {
        const [number, wanted, search] = [chapter.get(), verdict.get(), words.get().toLowerCase()];
        const found = all.filter(
          (one) =>
            (number === "all" || String(one.segment) === number) &&
            (!wanted || one.verdict === wanted) &&
            (!search || `${one.id} ${one.said} ${one.reason} ${one.quoted}`.toLowerCase().includes(search)),
        );
        walk.replaceChildren(
          ...chapters.slice(0, 7).map((one) => {
            const claims = all.filter((claim) => String(claim.segment) === one.value);
            const good = claims.filter((claim) => ["holds", "by definition"].includes(claim.verdict)).length;
            const link = el("button", { type: "button", "aria-pressed": String(number === one.value), onclick: () => (chapter.set(one.value), change(true)) }, el("b", { text: one.value }), el("span", { text: one.label.slice(3) }), el("small", { text: `${good} of ${claims.length} hold` }));
            return el("li", {}, link);
          }),
        );
        heading.textContent = number === "all" ? "All chapters" : ledger.chapters[number];
        cards.replaceChildren(...found.map((one) => parts.claimCard(one, true)));
        if (!found.length) cards.append(el("p", { text: "No claim fits." }));
        before.disabled = Number(number) <= 1;
        after.disabled = !(Number(number) < 7);
        const main = all.filter((one) => one.segment <= 7);
        const count = (/** @type {string} */ name) => main.filter((one) => one.verdict === name).length;
        rackline.answer(
          `Of ${main.length} claims, ${count("holds") + count("by definition")} hold, ${count("holds only if") + count("holds in these units")} hold under a condition or in the lecture's units, ${count("does not hold") || "none"} ${count("does not hold") === 1 ? "fails" : "fail"}; the rest have no number or are not computed. ${found.length} ${found.length === 1 ? "is" : "are"} shown.`,
        );
        const segment = number === "all" ? {} : { segment: Number(number) };
        const { command, python } = parts.spelled("lecture", [], segment);
        commands.update(command, python);
        place.setAttribute("data-ready", "");
      }

      return controls.board(list, [], draw);
    },
  });
})();
