// @ts-check
// Views that ask the library: a form, an answer with its figures, its table and its text. A server answers any form,
// shows how far it is and can be told to stop; a page alone shows the answers that were stored with it.
"use strict";

(() => {
  const { el, text, parts, controls } = rackline;
  const AGAIN = 2; // times that a question is asked again when its worker was lost

  const alone = () => document.body.dataset.mode === "static";
  const stopOf = (/** @type {any} */ view, /** @type {any} */ state) => {
    const at = view.stops ? view.stops.indexOf(state[view.stop] ?? view.fields[view.stop]) : 0;
    return Math.max(at, 0);
  };

  /** Ask the server; tells how far it is. @param {string} verb @param {any} question @param {string[]} figures
   * @param {AbortSignal} signal @param {(what: string, done: number | null, total: number | null) => void} tell
   * @param {(found: any) => void} estimated  is given the answer by estimates, where there is one */
  async function ask(verb, question, figures, signal, tell, estimated) {
    const told = tell;
    for (let turn = 0; ; turn++) {
      if (turn) tell = (what, done, total) => told(`The process that worked on it was lost; asked again. ${what}`, done, total);
      const response = await fetch(`api/v1/${verb}/view`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
        body: JSON.stringify({ ...question, figures }),
        signal,
      });
      let problem = null;
      if (response.status === 429) {
        tell("the server is busy; asking again", null, null);
        await new Promise((done) => setTimeout(done, 1000 * Number(response.headers.get("Retry-After") || 1)));
        signal.throwIfAborted();
        turn--;
        continue;
      }
      const type = response.headers.get("Content-Type") || "";
      if (!response.ok) problem = await response.json().catch(() => ({ detail: `the server answered ${response.status}` }));
      else if (type.startsWith("application/json")) return response.json();
      else {
        const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
        const decoder = new TextDecoder();
        let rest = "";
        while (!problem) {
          const { done, value } = await reader.read();
          if (done) {
            problem = { type: "/problems/worker-lost", detail: "the connection ended before the answer" };
            break;
          }
          rest += decoder.decode(value, { stream: true });
          const events = rest.split("\n\n");
          rest = /** @type {string} */ (events.pop());
          for (const event of events) {
            const name = /^event: (.*)$/m.exec(event);
            const data = /^data: (.*)$/m.exec(event);
            if (!name || !data) continue;
            const found = JSON.parse(data[1]);
            if (name[1] === "answer") return found;
            if (name[1] === "estimate") estimated(found);
            if (name[1] === "progress") tell(found.what, found.done, found.total);
            if (name[1] === "problem") problem = found;
          }
        }
      }
      if (String(problem.type).endsWith("worker-lost") && turn < AGAIN) continue;
      throw Object.assign(new Error(problem.detail || problem.title || "no answer"), { problem });
    }
  }

  /** Add the views that ask. */
  function add(/** @type {string} */ id, /** @type {any} */ view) {
    rackline.view({
      id,
      title: view.title,
      question: view.question,
      data: (state) => (alone() ? [`answer-${id}-${stopOf(view, state)}`] : []),
      mount(place, page) {
        const made = Object.entries(view.fields).map(([key, value]) => {
          const option = view.options[key];
          const label = option.label;
          const changed = () => {
            if (!alone()) return;
            rackline.remember(stateNow(), true);
            rackline.show();
          };
          if (alone() && key === view.stop)
            return controls.select({ key, label, value: String(value), options: view.stops.map((/** @type {string} */ one) => ({ value: one, label: one })) }, changed);
          if (option.choices.length)
            return controls.select({ key, label, value: String(value), options: option.choices.map((/** @type {string} */ one) => ({ value: one, label: one })) }, changed);
          return controls.entry({ key, label, value: String(value), hint: option.help }, changed);
        });
        const stateNow = () => Object.fromEntries(made.map((one) => [one.key, one.write()]));
        const button = el("button", { type: "submit", class: "main", text: "Ask" });
        const stop = el("button", { type: "button", text: "Stop", hidden: true });
        const bar = el("progress", { "aria-label": "How far the answer is", hidden: true });
        const told = el("p", { class: "note", role: "status" });
        const form = controls.form(made, { text: `Question of ${view.title}` });
        if (alone()) {
          for (const one of made) if (one.key !== view.stop) one.element.querySelectorAll("input, select").forEach((box) => (/** @type {any} */ (box).disabled = true));
          form.append(el("p", { class: "quiet", text: "This copy of the page stands alone and holds stored answers. `rackline web` answers every question." }));
        } else form.append(el("div", { class: "asking" }, button, stop), bar, told);
        const figures = el("div", { class: "figures" });
        const data = el("div");
        const waits = el("p", { class: "note estimate", role: "status", hidden: true, text: "Estimated. The best is being simulated with requests that arrive at random; its numbers will replace these." });
        const texts = el("div");
        const printed = el("pre", { tabindex: 0, role: "region", "aria-label": "Answer as text" });
        const commands = parts.commands();
        place.append(
          el("div", { class: "bench" }, form, el("div", {}, waits, figures)),
          el("section", { class: "text" }, el("h2", { text: "Why: as the command prints it" }), printed, el("details", { class: "rows" }, el("summary", { text: "All rows" }), data)),
          texts,
          ...(view.claims.length ? [parts.claims(view.claims)] : []),
          commands.element,
        );
        /** @type {any[]} */
        let drawn = [];
        /** @type {AbortController | null} */
        let running = null;
        let asked = "";

        /** @param {any} found @param {boolean=} estimated  whether numbers will follow that replace these */
        function shown(found, estimated) {
          waits.hidden = !estimated;
          drawn.forEach((one) => one.leave());
          drawn = Object.entries(found.figures).map(([kind, spec]) => {
            const several = ["hconcat", "vconcat", "concat", "facet", "repeat"].some((key) => key in /** @type {any} */ (spec));
            const title = /** @type {any} */ (spec).title;
            return new rackline.Figure({ name: `${id}-${kind}`, title: title.text, spec, height: Math.min((/** @type {any} */ (spec).height || 320) + 90, 620), fixed: several });
          });
          figures.replaceChildren(...drawn.map((one) => one.element));
          drawn.forEach((one, index) => {
            one.element.classList.add("wide");
            one.update({});
            const subtitle = /** @type {any} */ (Object.values(found.figures)[index]).title.subtitle;
            one.note.textContent = [subtitle || ""].flat().join(" ");
          });
          const names = Object.keys(found.columns).filter((name) => found.columns[name].some((/** @type {any} */ one) => one !== null && typeof one !== "object")).slice(0, 12);
          const count = names.length ? found.columns[names[0]].length : 0;
          const made = parts.table(names.map((name) => ({ name: name.replace(/_/g, " "), kind: typeof found.columns[name].find((/** @type {any} */ one) => one !== null) === "number" ? unit(name) : undefined })), "Rows of the answer");
          made.fill(Array.from({ length: Math.min(count, 60) }, (_, row) => names.map((name) => cell(found.columns[name][row]))));
          data.replaceChildren(made.element, count > 60 ? el("p", { class: "quiet", text: `60 of ${count} rows; CSV holds all.` }) : "", el("button", { type: "button", text: "CSV", onclick: () => rackline.save(`${id}.csv`, found.csv, "text/csv") }));
          printed.textContent = found.text;
          commands.update(found.command, `import rackline as rl\n\n${found.python}`.replace(/(import rackline as rl\s+)+/, "import rackline as rl\n\n"));
          texts.replaceChildren(...(Object.keys(found.documents).length ? [parts.section("To launch it", ...Object.entries(found.documents).map(([name, document]) => parts.document(name, document)))] : []));
          const said = estimated ? `Estimated: ${found.summary}` : `${found.summary[0].toUpperCase()}${found.summary.slice(1)}`;
          rackline.answer(`${said}.`.replace(/\.\.$/, "."));
          place.toggleAttribute("data-estimated", Boolean(estimated));
          place.toggleAttribute("data-ready", !estimated);
        }

        async function go(/** @type {boolean} */ kept) {
          const question = Object.fromEntries(made.map((one) => [one.key, one.get()]).filter(([, value]) => value !== ""));
          const key = JSON.stringify(question);
          if (key === asked) return;
          asked = key;
          if (kept) rackline.remember(stateNow(), true);
          if (running) running.abort();
          const mine = (running = new AbortController());
          place.removeAttribute("data-ready");
          place.setAttribute("aria-busy", "true");
          stop.hidden = bar.hidden = false;
          bar.removeAttribute("value");
          told.textContent = "";
          try {
            const found = await ask(view.verb, question, view.figures, mine.signal, (what, done, total) => {
              told.textContent = total ? `${what}: ${done} of ${total}` : what;
              if (total) {
                bar.max = total;
                bar.value = done || 0;
              } else bar.removeAttribute("value");
            }, (estimate) => mine === running && shown(estimate, true));
            if (mine === running) {
              told.textContent = "";
              shown(found);
            }
          } catch (error) {
            if (mine !== running) return;
            asked = "";
            if (mine.signal.aborted) told.textContent = "Stopped.";
            else {
              const { problem } = /** @type {any} */ (error);
              rackline.answer("");
              told.replaceChildren(el("span", { class: "problem", role: "alert", text: problem && problem.what ? `${problem.what}: got ${JSON.stringify(problem.given)}, allowed: ${problem.allowed}${problem.nearest ? `; nearest: ${problem.nearest}` : ""}` : String(/** @type {any} */ (error).message) }));
              place.setAttribute("data-ready", "");
            }
          } finally {
            if (mine === running) {
              stop.hidden = bar.hidden = true;
              place.removeAttribute("aria-busy");
              running = null;
            }
          }
        }
        stop.addEventListener("click", () => running && running.abort());
        form.addEventListener("submit", () => go(true));

        return {
          update(state) {
            made.forEach((one) => one.set(state[one.key]));
            if (alone()) shown(rackline.data.get(`answer-${id}-${stopOf(view, state)}`));
            else go(false);
          },
          leave() {
            if (running) running.abort();
            drawn.forEach((one) => one.leave());
          },
        };
      },
    });
  }

  const unit = (/** @type {string} */ name) =>
    name.includes("usd") ? "usd" : /_s$|seconds$/.test(name) ? "seconds" : name.endsWith("_bytes") ? "bytes" : /share|fraction|mfu|utilisation/.test(name) ? "share" : "count";
  const cell = (/** @type {any} */ value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : value);

  Object.assign(rackline, { asked: { add } });
})();
