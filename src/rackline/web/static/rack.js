// @ts-check
// Rack: chips in domains, switches and cables, and the traffic of experts that stays inside or crosses.
"use strict";

(() => {
  const { el, text, parts, controls } = rackline;

  rackline.view({
    id: "rack",
    title: "Rack",
    question: "How far should the fast links reach?",
    data: () => ["rack"],
    mount(place) {
      const site = rackline.data.get("site");
      const grid = rackline.data.get("rack");
      const clusters = Object.keys(grid.clusters);
      const sizes = grid.clusters[clusters[0]].cases.map((/** @type {any} */ one) => one.size);
      const machine = controls.select({ key: "k", label: "Links of", value: clusters[0], options: clusters.map((name) => ({ value: name, label: grid.clusters[name].title })) }, (kept) => change(kept));
      const domain = controls.slider({ key: "d", label: "Size of a domain", low: sizes[0], high: grid.ranks, value: 8, stops: sizes, whole: true, unit: "chips" }, (kept) => change(kept));
      const tokens = controls.toggle({ key: "t", label: "Tokens of each chip", value: "128", options: grid.tokens.map((/** @type {number} */ one) => ({ value: String(one), label: String(one) })) }, (kept) => change(kept));
      const list = [machine, domain, tokens];
      const time = new rackline.Figure({ name: "exchange", title: "Time to send tokens to their experts", spec: site.figures.rack_time, hover: ["domain_size", "whole", "seconds", "seconds"], measures: [["series", "links of", ""], ["domain_size", "chips in a domain", "whole"], ["seconds", "time", "seconds"]] });
      const matrix = new rackline.Figure({ name: "matrix", title: "Who sends to whom: the first 32 chips", spec: site.figures.rack_matrix, height: 470, measures: [["from", "from chip", ""], ["to", "to chip", ""], ["sent_bytes", "over slow links", "bytes"]] });
      const drawn = el("div", { class: "domains", role: "img" });
      const drawing = el("figure", { class: "figure wide" }, el("figcaption", {}, el("span", { class: "title", text: `${grid.ranks} chips` })), drawn, el("p", { class: "note" }));
      const table = parts.table([{ name: "chips in a domain" }, { name: "crosses", kind: "share" }, { name: "inside, each chip", kind: "bytes" }, { name: "beyond, each chip", kind: "bytes" }, { name: "exchange", kind: "seconds" }, { name: "switches", kind: "whole" }, { name: "cables", kind: "whole" }], "Domain by domain");
      const commands = parts.commands();
      place.append(parts.bench(controls.form(list), [drawing, time.element, matrix.element]), parts.section("Why: domain by domain", table.element), parts.claims(site.views.rack.claims), commands.element);
      const change = controls.frames(() => list, () => draw());

      function draw() {
        const [name, size, count] = [machine.get(), domain.get(), Number(tokens.get())];
        const found = grid.clusters[name];
        const here = found.cases.find((/** @type {any} */ one) => one.size === size);
        drawn.replaceChildren(
          ...Array.from({ length: grid.ranks / size }, () => el("div", { class: "domain" }, Array.from({ length: size }, () => el("i")), size > 1 && here.switches ? el("b", { text: `${text.number(here.switches / (grid.ranks / size))} switches` }) : null)),
        );
        drawn.setAttribute("aria-label", `${grid.ranks} chips in ${grid.ranks / size} domains of ${size}.`);
        /** @type {HTMLElement} */ (drawing.querySelector(".note")).textContent = `${grid.ranks / size} ${grid.ranks / size === 1 ? "domain" : "domains"}, ${here.switches === null ? "switches not known" : `${text.whole(here.switches)} switch chips`}, ${here.cables === null ? "cables not known" : `${text.whole(here.cables)} links`}; ${text.rate(found.inside)} inside, ${found.outside ? text.rate(found.outside) : "nothing"} beyond, each chip and way.`;
        const rows = clusters.flatMap((one, place) => grid.clusters[one].cases.map((/** @type {any} */ each) => ({ series: grid.clusters[one].title, domain_size: each.size, seconds: each.seconds * count, style: one === name ? 0 : 1, place })));
        const seen = grid.measured
          .filter((/** @type {any} */ one) => one.clusters.includes(name) && one.tokens === count)
          .map((/** @type {any} */ one) => ({ ...one, text: `${text.seconds(one.seconds)} with ${text.whole(one.tokens)} tokens of each chip` }));
        const y = rackline.axis([...rows, ...seen].map((row) => row.seconds), { log: true });
        time.name(clusters.map((one, place) => ({ name: grid.clusters[one].title, place, dashed: one !== name })));
        time.update({ rows, marks: [{ domain_size: size, seconds: here.seconds * count }], regions: [], measured: seen }, { x_range: [1, grid.ranks], x_ticks: sizes, y_range: y.range, y_ticks: y.ticks }, `Time of one exchange of ${count} tokens of each of ${grid.ranks} chips against the size of the domain: ${text.seconds(here.seconds * count)} with ${size}.`);
        time.note.textContent = `A deployment has domains of ${found.size}; bringing results back takes twice as long in 16 bits.${seen.map((/** @type {any} */ one) => ` Triangle: measured ${one.text}, over the network alone (${one.source}).`).join("")}`;
        const shown = 32;
        const drawMatrix = () => matrix.update(
          { rows: Array.from({ length: shown * shown }, (_, index) => [Math.floor(index / shown), index % shown]).map(([from, to]) => ({ from, to, sent_bytes: Math.floor(from / size) === Math.floor(to / size) ? 0 : here.pair * count })) },
          {},
          `Matrix of traffic between the first ${shown} chips: ${text.share(here.crossing)} of all bytes leave their domain.`,
        );
        if (matrix.view) rackline.later(() => place.isConnected && drawMatrix()); // a thousand cells, once the hand rests
        else drawMatrix();
        matrix.note.textContent = `Each pair exchanges ${text.bytes(here.pair * count)}; pairs of different domains, which are coloured, need the slow links.`;
        table.fill(found.cases.map((/** @type {any} */ one) => [String(one.size), one.crossing, one.inside * count, one.outside * count, one.seconds * count, one.switches, one.cables]));
        const whole = found.cases[found.cases.length - 1];
        rackline.answer(
          `With domains of ${size} ${size === 1 ? "chip" : "chips"}, ${text.share(here.crossing)} of the tokens on their way to ${grid.ranks} chips of experts leave their domain, and sending ${count} tokens of each chip takes ${text.seconds(here.seconds * count)}, ${size === grid.ranks ? "all of it on fast links" : `${text.number(here.seconds / whole.seconds)} times as long as inside one domain`}. ${seen.length ? `Measured over the network alone: ${seen.map((/** @type {any} */ one) => `${text.seconds(one.seconds)}, where ${text.seconds(found.cases[0].seconds * count)} are computed`).join("; ")}.` : "Links are taken at their full rates."}`,
        );
        const { command } = parts.spelled("clusters", [name], {});
        commands.update(
          command,
          [
            "from rackline.hardware import cluster",
            "from rackline.parallel.exchange import ExpertRouting, dispatch_traffic",
            "",
            `machine = cluster("${name}")`,
            `routing = ExpertRouting(num_ranks=${grid.ranks}, num_experts=${grid.experts}, experts_per_token=${grid.expertsPerToken}, ranks_per_domain=${size})`,
            `traffic = dispatch_traffic(routing, ${count}.0, ${grid.tokenBytes}.0)`,
            "traffic.seconds(machine.scale_up.bytes_per_s_each_way, machine.scale_out.bytes_per_s_each_way)",
          ].join("\n"),
        );
        place.setAttribute("data-ready", "");
      }

      return controls.board(list, [time, matrix], draw);
    },
  });
})();
