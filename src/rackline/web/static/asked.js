// @ts-check
// Views that ask the library: a form, an answer with its figures, its table and its text. A server answers any form,
// shows how far it is and can be told to stop; a page alone shows the answers that were stored with it.
"use strict";

(() => {
  const { el, text, parts, controls } = rackline;
  const AGAIN = 2; // times that a question is asked again when its worker was lost
  const REST_MS = 40; // a slider's question is asked when it has rested this long
  const NAMED = /** @type {Record<string, string>} */ ({ cluster: "on" }); // fields that an error calls by another name
  const WAITS = "Estimated. The best is being simulated with requests that arrive at random; its numbers will replace these.";
  const FRONT = 365; // beside a decision [pixels]
  const PHONE = 500; // width up to which the front stands below the decision, on the same screen [pixels]
  const PHONE_FRONT = 250; // [pixels]
  const SLOW_MS = 250; // an answer that takes longer shows how far it is

  const answerOf = () => /** @type {HTMLElement} */ (document.querySelector("#answer"));
  const alone = () => document.body.dataset.mode === "static";
  const stopOf = (/** @type {any} */ view, /** @type {any} */ state) => {
    if (view.presets) return Math.max(view.presets.findIndex((/** @type {any} */ one) => one.name === state.preset), 0);
    const at = view.stops ? view.stops.indexOf(state[view.stop] ?? view.fields[view.stop]) : 0;
    return Math.max(at, 0);
  };

  /** A text of a form as the API takes it. @param {any} option @param {string} given */
  function valueOf(option, given) {
    if (option && option.kind === "switch") return { true: true, false: false }[given] ?? given;
    return option && option.list ? [...given.matchAll(/(?:^|;)((?:[^;\\]|\\.)*)/gs)].map((one) => one[1].replace(/\\(.)/gs, "$1")) : given;
  }

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
      data: (state) => (alone() ? [`answer-${id}-${stopOf(view, state)}`, ...(view.sliders ? [`grid-${id}`] : [])] : [`options-${view.verb}`]),
      mount(place, page) {
        const sliders = view.sliders || {};
        const optional = view.optional ? view.optional.fields : [];
        const presets = (view.presets || []).filter((/** @type {any} */ one) => !alone() || !one.live);
        const further = alone() ? {} : rackline.data.get(`options-${view.verb}`).options;
        const optionOf = (/** @type {string} */ key) => further[key] || view.options[key];
        const changed = () => {
          if (!alone()) return;
          rackline.remember(stateNow(), true);
          rackline.show();
        };
        const moves = controls.frames(() => made, () => (alone() ? moved() : follow()));
        const of = (/** @type {string} */ key, /** @type {any} */ value, /** @type {any} */ option) => {
          const label = option.label;
          if (sliders[key]) return controls.slider({ key, label, ...sliders[key], value: text.parse(value) }, moves);
          if (alone() && key === view.stop)
            return controls.select({ key, label, value: String(value), options: view.stops.map((/** @type {string} */ one) => ({ value: one, label: one })) }, changed);
          if (option.choices.length)
            return controls.select({ key, label, value: String(value), options: option.choices.map((/** @type {string} */ one) => ({ value: one, label: one })) }, changed);
          const kind = alone() ? undefined : { model: "models", on: "clusters", ...view.suggested }[key];
          return controls.entry({ key, label, value: String(value), hint: option.help, names: kind && (async () => (await rackline.load("names"))[kind]) }, changed);
        };
        const made = Object.entries(view.fields).map(([key, value]) => of(key, value, view.options[key]));
        const essential = made.length;
        const folds = Object.entries(further).filter(([key]) => !(key in view.fields));
        for (const [key, option] of folds) made.push(of(key, "", option));
        const preset = view.presets && controls.select({ key: "preset", label: "For example", value: alone() ? presets[0].name : "", options: [...(alone() ? [] : [{ value: "", label: "choose one" }]), ...presets.map((/** @type {any} */ one) => ({ value: one.name, label: one.name }))] }, () => chosen());
        /** What an example asks goes into the fields. */
        function chosen() {
          if (alone()) return changed();
          const fields = view.presets.find((/** @type {any} */ one) => one.name === preset.get())?.fields || {};
          for (const one of made) one.set(fields[one.key] ?? (one.key in view.fields ? undefined : ""));
          preset.set("");
          return go(true);
        }
        const known = view.optional && controls.toggle({ key: "known", label: view.optional.label, value: "no", options: [{ value: "no", label: "Not known" }, { value: "yes", label: "As set" }] }, moves);
        if (known) made.splice(made.findIndex((one) => one.key === optional[0]), 0, known);
        const model = made.find((one) => one.key === "model");
        const omitted = (/** @type {string} */ key) => key === "known" || (known && known.get() === "no" && optional.includes(key));
        const written = (/** @type {any} */ one) => (sliders[one.key] ? `${Number(one.get().toPrecision(9))}${sliders[one.key].kind === "seconds" ? "s" : ""}` : one.get());
        /** What is asked, as texts. */
        const questionNow = () => Object.fromEntries(made.filter((one) => !omitted(one.key)).map((one) => [one.key, written(one)]).filter(([, value]) => value !== "").map(([key, value]) => [key, valueOf(optionOf(key), value)]));
        const settle = () => made.forEach((one) => sliders[one.key] && one.element.querySelectorAll("input").forEach((box) => (box.disabled = Boolean(omitted(one.key)))));
        const listed = preset && alone() ? [preset] : made;
        const stateNow = () => Object.fromEntries(listed.map((one) => [one.key, one.write()]));
        const button = el("button", { type: "submit", class: "main", text: "Ask" });
        const stop = el("button", { type: "button", text: "Stop", hidden: true });
        const bar = el("progress", { "aria-label": "How far the answer is", hidden: true });
        const told = el("p", { class: "note", role: "status" });
        const form = controls.form(preset ? [preset, ...made.slice(0, essential)] : made.slice(0, essential), { text: `Question of ${view.title}` });
        if (folds.length) form.append(folded(made.slice(essential), further));
        if (alone()) {
          for (const one of made) if ((one.key !== view.stop || preset) && one.key !== "known" && !sliders[one.key]) one.element.querySelectorAll("input, select").forEach((box) => (/** @type {any} */ (box).disabled = true));
          form.append(el("p", { class: "quiet", text: `This copy of the page stands alone and holds stored answers${view.sliders ? " and what lies between them" : ""}. \`rackline web\` answers every question.` }));
        } else form.append(el("div", { class: "asking" }, button, stop), bar, told);
        const figures = el("div", { class: "figures" });
        const card = rackline.card();
        const bench = el("div", { class: "bench" });
        const data = el("div");
        const waits = el("p", { class: "note estimate", role: "status", hidden: true });
        const texts = el("div");
        const printed = el("div", { class: "printed" });
        const opened = el("div");
        const commands = parts.commands();
        const measured = parts.measured(view.verb);
        const rows = el("div");
        const saves = el("p", { class: "saves", role: "group", "aria-label": "Save the answer as" });
        const prints = el("section", { class: "text" }, el("div", { class: "titled" }, el("h2", { text: "The answer in full" }), saves), printed, el("details", { class: "rows" }, el("summary", { text: "All rows" }), data));
        bench.append(form, el("div", {}, waits, figures));
        place.append(
          bench,
          ...(alone() && view.sliders ? [parts.section("Why: row by row", rows)] : []),
          opened,
          prints,
          texts,
          measured.element,
          ...(view.claims.length ? [parts.claims(view.claims)] : []),
          commands.element,
        );
        /** @type {any[]} */
        let drawn = [];
        /** @type {any[]} */
        let replays = [];
        /** @type {AbortController | null} */
        let running = null;
        let asked = "";

        /** Where the replay of a figure is left stands in the address. @param {number | null} now */
        function left(now) {
          const { t, ...rest } = rackline.address().state;
          rackline.remember(now === null ? rest : { ...rest, t: String(Number(now.toPrecision(4))) }, false);
        }

        /** Draw figures of an answer; those that are there already are redrawn in their place. @param {Record<string, any>} specs */
        function draw(specs) {
          const kinds = Object.entries(specs);
          if (kinds.map(([kind, spec]) => `${id}-${kind} ${spec.title.text}`).join() === drawn.map((one) => `${one.options.name} ${one.options.title}`).join()) drawn.forEach((one, index) => one.redraw(kinds[index][1]));
          else {
            drawn.forEach((one) => one.leave());
            drawn = kinds.map(([kind, spec], index) => {
              const several = ["hconcat", "vconcat", "concat", "facet", "repeat"].some((key) => key in spec);
              const panels = "vconcat" in spec && !JSON.stringify(spec.vconcat.map((/** @type {any} */ one) => Object.keys(one))).includes("concat");
              return new rackline.Figure({ panels, name: `${id}-${kind}`, title: spec.title.text, spec, height: index || card.element.hidden ? Math.min((spec.height || 320) + 90, 620) : window.innerWidth <= PHONE ? PHONE_FRONT : FRONT, fixed: several && !panels, rows: (spec.layer || [spec]).some((/** @type {any} */ part) => part.encoding?.y?.type === "nominal") });
            });
            figures.replaceChildren(card.element, ...drawn.slice(0, 1).map((one) => one.element), card.caveat, ...drawn.slice(1).map((one) => one.element));
            drawn.slice(0, 1).forEach((one) => one.element.classList.toggle("beside", !card.element.hidden));
            replays.forEach((one) => one.leave());
            replays = drawn.filter((one) => Number.isFinite(rackline.replay.endOf(one.options.spec))).map((one) => {
              const made = rackline.replay.of(one, left);
              one.place.before(made.element);
              return made;
            });
            drawn.forEach((one, index) => {
              if (index || card.element.hidden) one.element.classList.add("wide");
              one.update({});
            });
          }
          replays.forEach((one) => one.set(rackline.address().state.t));
          drawn.forEach((one, index) => (one.note.textContent = [kinds[index][1].title.subtitle || ""].flat().join(" ")));
        }

        /** Without a server: what the grid says where the sliders stand. */
        function moved() {
          settle();
          const asked = Object.fromEntries(made.filter((one) => !omitted(one.key)).map((one) => [one.key, one.get()]));
          const found = rackline.grids.moved[id](rackline.data.get(`grid-${id}`), asked);
          const figured = Object.entries(found.figures);
          if (!drawn.length) {
            drawn = figured.map(([kind]) => {
              const name = `${id}-${kind}`;
              const spec = rackline.data.get("site").figures[`${id}_${kind}`];
              const one = new rackline.Figure({ name, title: view.drawn[kind], spec, height: 380, ...rackline.grids.measures[name] });
              one.element.classList.add("wide");
              return one;
            });
            figures.replaceChildren(...drawn.map((one) => one.element));
          }
          figured.forEach(([, one], index) => {
            drawn[index].name(one.series);
            drawn[index].update(one.rows, one.signals, one.description);
            drawn[index].note.textContent = one.note;
          });
          const stored = rackline.data.get(`answer-${id}-${stopOf(view, stateNow())}`);
          const first = made.every((one) => one.key === view.stop || !one.write());
          prints.hidden = !first;
          if (first) describe(stored);
          else rackline.answer(found.answer);
          rackline.later(() => {
            const table = parts.table(found.columns, "The answer row by row");
            table.fill(found.table);
            rows.replaceChildren(table.element);
            if (!first) {
              const { positional, ...rest } = parted(questionNow());
              const { command, python } = parts.spelled(view.verb, positional, rest);
              commands.update(command, python);
            }
            if (place.isConnected) place.setAttribute("data-ready", "");
          });
          place.removeAttribute("data-ready");
        }

        /** What stands without a name in a command, and the rest. @param {Record<string, string>} question */
        function parted(question) {
          const bare = Object.keys(question).filter((key) => view.options[key].positional);
          return { positional: bare.map((key) => question[key]), ...Object.fromEntries(Object.entries(question).filter(([key]) => !bare.includes(key))) };
        }

        let timer = 0;
        /** With a server: ask once the hand rests a moment; what was asked before is stopped. */
        function follow() {
          settle();
          clearTimeout(timer);
          timer = window.setTimeout(() => go(false), REST_MS);
        }

        /** @param {any} found @param {boolean=} estimated  whether numbers will follow that replace these */
        function shown(found, estimated) {
          waits.hidden = !estimated;
          waits.textContent = WAITS;
          card.update(found.card, estimated);
          bench.classList.toggle("decided", !card.element.hidden);
          draw(found.figures);
          describe(found, estimated);
          if (model) measured.update(model.get());
          place.toggleAttribute("data-estimated", Boolean(estimated));
          place.toggleAttribute("data-ready", !estimated);
        }

        /** Sentence, text, rows and commands of an answer. @param {any} found @param {boolean=} estimated */
        function describe(found, estimated) {
          const names = Object.keys(found.columns).filter((name) => found.columns[name].some((/** @type {any} */ one) => one !== null && typeof one !== "object")).slice(0, 12);
          const count = names.length ? found.columns[names[0]].length : 0;
          const made = parts.table(names.map((name) => ({ name: name.replace(/_/g, " "), kind: typeof found.columns[name].find((/** @type {any} */ one) => one !== null) === "number" ? unit(name) : undefined })), "Rows of the answer");
          made.fill(Array.from({ length: Math.min(count, 60) }, (_, row) => names.map((name) => cell(found.columns[name][row]))));
          data.replaceChildren(made.element, count > 60 ? el("p", { class: "quiet", text: `60 of ${count} rows; CSV holds all.` }) : "", );
          saves.replaceChildren(
            el("button", { type: "button", text: "JSON", onclick: async () => rackline.save(`${id}.json`, JSON.stringify(found.answer || (await rackline.load(`json-${id}-${stopOf(view, rackline.address().state)}`)).answer, null, 1), "application/json") }),
            el("button", { type: "button", text: "CSV", onclick: () => rackline.save(`${id}.csv`, found.csv, "text/csv") }),
          );
          printed.replaceChildren(...parts.printed(found.printed));
          opened.replaceChildren(...(found.origins.length ? [parts.origins(found.origins)] : []));
          commands.update(found.command, `import rackline as rl\n\n${found.python}`.replace(/(import rackline as rl\s+)+/, "import rackline as rl\n\n"));
          texts.replaceChildren(...(Object.keys(found.documents).length ? [parts.section("To launch it", ...Object.entries(found.documents).map(([name, document]) => parts.document(name, document)))] : []));
          const said = [estimated ? `Estimated: ${found.summary}` : found.summary, ...found.interval.split("\n")].filter(Boolean);
          answerOf().classList.toggle("unseen", !card.element.hidden); // the card shows it; it is read aloud
          rackline.answer(said.map((one) => `${one[0].toUpperCase()}${one.slice(1)}.`.replace(/\.\.$/, ".")).join(" "));
        }

        async function go(/** @type {boolean} */ kept) {
          const question = questionNow();
          const key = JSON.stringify(question);
          if (key === asked) return;
          asked = key;
          if (kept) rackline.remember(stateNow(), true);
          if (running) running.abort();
          const mine = (running = new AbortController());
          place.removeAttribute("data-ready");
          place.removeAttribute("data-stale");
          controls.mark(made);
          place.setAttribute("aria-busy", "true");
          const slow = window.setTimeout(() => (stop.hidden = bar.hidden = false), SLOW_MS); // nothing flickers at short answers
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
            if (mine.signal.aborted) {
              told.textContent = "Stopped.";
              waits.textContent = "Estimated. Stopped before the best was simulated: Ask goes on.";
            } else {
              const { problem } = /** @type {any} */ (error);
              const why = problem ? parts.refusal(problem) : String(/** @type {any} */ (error).message);
              answerOf().classList.remove("unseen");
              rackline.answer(`Refused. ${why}`);
              controls.mark(made, problem && (made.some((one) => one.key === problem.what) ? problem.what : NAMED[problem.what]), why);
              const seen = place.querySelector('[aria-invalid="true"]') || document.querySelector("#answer");
              const fold = seen && seen.closest("details");
              if (fold) fold.open = true;
              if (seen) seen.scrollIntoView({ block: "nearest" });
              waits.hidden = true;
              place.setAttribute("data-stale", ""); // what is still drawn answers another question
              place.setAttribute("data-ready", "");
            }
          } finally {
            clearTimeout(slow);
            if (mine === running) {
              stop.hidden = bar.hidden = true;
              place.removeAttribute("aria-busy");
              running = null;
            }
          }
        }
        stop.addEventListener("click", () => running && running.abort());
        form.addEventListener("submit", () => go(true));
        const moved_ = (/** @type {any} */ one) => one.key === view.stop || one.key === "known" || sliders[one.key];

        return {
          update(state) {
            made.forEach((one) => one.set(state[one.key]));
            settle();
            replays.forEach((one) => one.set(state.t));
            if (preset && alone()) preset.set(state.preset);
            controls.heed(preset && alone() ? [preset] : alone() ? made.filter(moved_) : made, state, ["t"]);
            const fold = form.querySelector("details");
            if (fold && folds.some(([key]) => state[key])) fold.open = true;
            if (preset && alone()) for (const one of made) one.set((view.presets[stopOf(view, state)].fields || {})[one.key]);
            if (!alone()) go(false);
            else if (view.sliders) moved();
            else shown(rackline.data.get(`answer-${id}-${stopOf(view, state)}`));
          },
          full: () => Object.fromEntries(Object.entries(controls.full(listed)).filter(([key, value]) => value !== "" || key in view.fields)),
          leave() {
            clearTimeout(timer);
            if (running) running.abort();
            replays.forEach((one) => one.leave());
            drawn.forEach((one) => one.leave());
          },
        };
      },
    });
  }

  /** Options beside the essential ones, by their headings. @param {any[]} list @param {Record<string, any>} options */
  function folded(list, options) {
    /** @type {Map<string, any[]>} */
    const groups = new Map();
    for (const one of list) groups.set(options[one.key].group, [...(groups.get(options[one.key].group) || []), one]);
    const element = el("details", { class: "folded" }, el("summary", { text: `${list.length} more options` }));
    for (const [name, group] of [...groups].sort(([a], [b]) => Number(a !== "") - Number(b !== ""))) {
      const place = el("fieldset", {}, el("legend", { text: name || "Options" }), group.map((one) => one.element));
      for (const one of group) {
        const id = `help-${one.key}`;
        one.element.append(el("p", { class: "quiet", id, text: options[one.key].help.replace(/`/g, "") }));
        one.element.querySelectorAll("input, select").forEach((/** @type {any} */ box) => box.setAttribute("aria-describedby", id));
      }
      element.append(place);
    }
    return element;
  }

  const unit = (/** @type {string} */ name) =>
    name.includes("usd") ? "usd" : /_s$|seconds$/.test(name) ? "seconds" : name.endsWith("_bytes") ? "bytes" : /share|fraction|mfu|utilisation/.test(name) ? "share" : "count";
  const cell = (/** @type {any} */ value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : value);

  Object.assign(rackline, { asked: { add, valueOf } });
})();
