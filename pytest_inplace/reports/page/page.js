"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const { tests, findings, rules, about } = data;
  for (const f of findings) f.steps = f.steps.map((n) => data.steps[n]);

  // Text from the user's code reaches the page through textContent and attributes only.
  function el(tag, attributes, ...children) {
    const svg = ["svg", "rect", "path", "text", "line", "g", "title"].includes(tag) && attributes && attributes.svg !== undefined;
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name !== "svg" && value !== null && value !== undefined) node.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined && child !== "") node.append(child);
    }
    return node;
  }
  const s = (tag, attributes, ...children) => el(tag, { svg: 1, ...attributes }, ...children);
  // A path may break after a slash rather than anywhere.
  const place = (text) => text.split("/").flatMap((part, i, parts) => (i + 1 < parts.length ? [`${part}/`, el("wbr")] : [part]));
  const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  const short = (x) => (x === null || x === undefined ? "–" : Number(x).toPrecision(3));
  const moduleOf = (nodeid) => nodeid.split("::")[0];

  // -- the overview --------------------------------------------------------------------------------
  const rows = { findings: [], tests: [] };
  let tab = "findings";
  const modulesOf = findings.map((f) => new Set(f.tests.map((t) => moduleOf(tests[t][0]))));

  function findingRow(f, i) {
    const row = el("a", { class: "row", href: `#f${i}` },
      el("span", { class: `tag ${f.state}` }, f.code),
      el("span", { class: "mono" }, place(f.where || "place not known")),
      el("div", {}, f.subject, f.off ? `, gradients ${f.off} off` : "", f.test_count > 1 ? `, ${plural(f.test_count, "test")}` : ""),
      el("div", { class: "dim" }, `${rules[f.code][0]}, ${f.state}`));
    const text = [f.headline, f.where, f.fix, f.note, ...f.tests.map((t) => tests[t][0]), ...f.steps.map((x) => x.function)].join("\n").toLowerCase();
    return { row, text, rules: new Set([f.code]), states: new Set([f.state]), modules: modulesOf[i], files: new Set([f.file]) };
  }
  function testRow(t) {
    const [nodeid, verdict, saved, content, reason, found, parity] = t;
    const first = found.length ? `#f${found[0]}` : null;
    const row = el(first ? "a" : "div", { class: "row test", href: first, tabindex: first ? null : "0" },
      el("span", { class: `tag ${verdict}` }, verdict), el("span", { class: "mono" }, nodeid),
      el("div", { class: "dim" }, reason || `${plural(saved, "saved tensor")}, ${content} compared by content`,
        found.length ? `, ${plural(found.length, "finding")}` : "", parity ? `, ${parity}` : ""));
    const mine = found.map((i) => findings[i]);
    return {
      row, text: `${nodeid}\n${reason || ""}\n${parity || ""}`.toLowerCase(), rules: new Set(mine.map((f) => f.code)),
      states: new Set([verdict, ...mine.map((f) => f.state)]), modules: new Set([moduleOf(nodeid)]), files: new Set(mine.map((f) => f.file)),
    };
  }
  function choices(select, values, label) {
    const old = select.value;
    select.replaceChildren(el("option", { value: "" }, label), ...[...values].filter((v) => v !== null).sort().map((v) => el("option", { value: v }, v)));
    select.value = [...select.options].some((o) => o.value === old) ? old : "";
  }
  const all = (key) => new Set(rows[tab].flatMap((r) => [...r[key]]));
  function show(which) {
    tab = which;
    for (const name of ["findings", "tests"]) {
      $(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
      $(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
    }
    if (!rows[tab].length) rows[tab] = tab === "findings" ? findings.map(findingRow) : tests.map(testRow);
    choices($("rule"), all("rules"), "all rules");
    choices($("state"), all("states"), "all states");
    choices($("module"), all("modules"), "all test modules");
    choices($("file"), all("files"), "all files");
    $("list").replaceChildren(...rows[tab].map((r) => r.row));
    $("list").setAttribute("aria-labelledby", `tab-${tab}`);
    filter();
    markCurrent();
  }
  function filter() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [["rule", "rules"], ["state", "states"], ["module", "modules"], ["file", "files"]]
      .map(([id, key]) => [$(id).value, key]).filter(([value]) => value);
    let count = 0;
    for (const r of rows[tab]) {
      const fits = words.every((w) => r.text.includes(w)) && wanted.every(([value, key]) => r[key].has(value));
      r.row.hidden = !fits;
      r.row.style.display = fits ? "" : "none";
      count += fits;
    }
    $("shown").textContent = `${count} of ${plural(rows[tab].length, tab === "findings" ? "finding" : "test")} shown`;
  }
  function clear() {
    for (const id of ["search", "rule", "state", "module", "file"]) $(id).value = "";
    filter();
  }

  // -- one finding ---------------------------------------------------------------------------------
  const BETWEEN = { saved: "holds what was saved", written: "holds other values" };
  function timeline(f) {
    return el("ol", { class: "timeline", "aria-label": "What happened to the tensor" }, f.steps.map((step, i) =>
      el("li", { class: step.kind }, el("b", {}, step.verb),
        el("div", { class: "mono" }, place(`${step.path}:${step.line}`)), el("div", { class: "dim" }, `in ${step.function}`),
        i + 1 < f.steps.length ? el("span", { class: "between" }, BETWEEN[step.kind] || "", " →") : null)));
  }
  function code(step) {
    const block = el("div", { class: "code" });
    step.lines.forEach((line, i) => {
      const here = step.first + i === step.line;
      const text = el("span", { class: here ? "here" : null });
      if (here && step.mark && step.mark[1] <= line.length) {
        const chars = Array.from(line);
        text.append(chars.slice(0, step.mark[0]).join(""), el("mark", {}, chars.slice(step.mark[0], step.mark[1]).join("")), chars.slice(step.mark[1]).join(""));
      } else if (here) {
        const indent = line.length - line.trimStart().length;
        text.append(line.slice(0, indent), el("mark", {}, line.slice(indent)));
      } else text.append(line);
      block.append(el("span", { class: "no" }, String(step.first + i)), text);
    });
    return el("figure", { class: step.kind },
      el("figcaption", {}, el("b", {}, step.verb), " ", place(`${step.path}:${step.line}`), ` in ${step.function}`, step.note ? el("div", { class: "dim" }, step.note) : null),
      step.lines.length ? el("pre", { tabindex: "0", "aria-label": `Source where it was ${step.kind}` }, block) : null);
  }
  function scale(heat, shape) {
    const axis = (from, to) => `${to - from > 1 ? `dimensions ${from} to ${to - 1}` : `dimension ${from}`}, ${shape.slice(from, to).join(" × ")}`;
    const dims = heat.row_dims === null ? `A vector of ${plural(shape.reduce((a, b) => a * b, 1), "element")}, in rows of ${heat.columns}`
      : `Rows: ${axis(0, heat.row_dims)}. Columns: ${axis(heat.row_dims, shape.length)}`;
    const [h, w] = heat.cell;
    return `${dims}. ${h * w === 1 ? "A cell is one element." : `A cell is ${h} × ${w} elements and shows the greatest change among them.`}`;
  }
  function heatMap(values) {
    const heat = values.heat, down = heat.cells.length, across = heat.cells[0].length;
    const size = Math.max(10, Math.min(32, Math.floor(288 / Math.max(down, across))));
    const canvas = el("canvas", { width: across * size, height: down * size, role: "img", "aria-label": `Heat map of ${plural(values.changed, "changed element")} of ${values.total}` });
    const draw = () => {
      const style = getComputedStyle(document.documentElement), g = canvas.getContext("2d");
      const rgb = style.getPropertyValue("--heat");
      heat.cells.forEach((row, y) => [...row].forEach((level, x) => {
        g.clearRect(x * size, y * size, size, size);
        if (level === ".") return;
        g.fillStyle = level === "0" ? style.getPropertyValue("--panel") : level === "!" ? style.getPropertyValue("--fg") : `rgba(${rgb}, ${0.15 + 0.85 * level / 9})`;
        g.fillRect(x * size, y * size, size - 1, size - 1);
      }));
    };
    canvas.redraw = draw;
    draw();
    const tip = el("p", { class: "dim" }, "Point at a cell to read it.");
    canvas.addEventListener("mousemove", (event) => {
      const box = canvas.getBoundingClientRect();
      const x = Math.min(across - 1, Math.floor((event.clientX - box.left) / box.width * across));
      const y = Math.min(down - 1, Math.floor((event.clientY - box.top) / box.height * down));
      const level = heat.cells[y][x], [h, w] = heat.cell;
      const what = level === "." ? "no element" : level === "0" ? "unchanged" : level === "!" ? "changed to or from a value that is not finite"
        : `changed by up to ${short(values.max_abs === null ? null : values.max_abs * (level / 9) ** 2)}`;
      tip.textContent = `rows ${y * h} to ${Math.min(heat.rows, (y + 1) * h) - 1}, columns ${x * w} to ${Math.min(heat.columns, (x + 1) * w) - 1}: ${what}`;
    });
    return el("div", {}, canvas, el("p", { class: "dim" }, scale(heat, values.shape)),
      el("p", { class: "dim" }, el("span", { class: "key", style: "--c: var(--panel)" }, "unchanged"),
        el("span", { class: "key", style: "--c: rgb(var(--heat))" }, `changed, up to ${short(values.max_abs)}`)), tip);
  }
  function values(f) {
    const v = f.values;
    if (!v) return null;
    const share = v.total ? ` (${(100 * v.changed / v.total).toFixed(1)}%)` : "";
    return el("section", {}, el("h3", {}, "What changed"),
      el("p", {}, `${v.changed.toLocaleString("en")} of ${plural(v.total, "element")}${share}, greatest difference ${v.max_abs === null ? "not finite" : short(v.max_abs)}`),
      el("div", { class: "pictures" }, v.heat ? heatMap(v) : null, v.largest.length ? el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, el("th", {}, "index"), el("th", { class: "number" }, "saved"), el("th", { class: "number" }, "now"))),
        el("tbody", {}, v.largest.map(([index, before, after]) => el("tr", {}, el("td", { class: "mono" }, `[${index.join(", ")}]`), el("td", { class: "number mono" }, before), el("td", { class: "number mono" }, after)))))) : null));
  }
  function histogram(g) {
    const { low, high, right, computed, not_finite: out } = g.histogram;
    const W = 320, H = 110, top = Math.max(1, ...right, ...computed), w = W / right.length, y = (n) => H - 90 * Math.sqrt(n / top);
    let line = `M0 ${H}`;
    computed.forEach((n, i) => { line += `V${y(n).toFixed(1)}H${((i + 1) * w).toFixed(1)}`; });
    const outside = out[0] || out[1] ? ` Not finite: ${out[0]} right, ${out[1]} computed.` : "";
    return el("div", {}, el("p", { class: "mono" }, g.name),
      s("svg", { viewBox: `0 0 ${W} ${H + 16}`, role: "img", "aria-label": `Histogram of the right and the computed gradient of ${g.name}` },
        right.map((n, i) => s("rect", { class: "r", x: i * w, y: y(n), width: w - 1, height: H - y(n) }, s("title", {}, `right: ${n}, computed: ${computed[i]}`))),
        s("path", { class: "g", d: `${line}V${H}` }), s("line", { x1: 0, x2: W, y1: H, y2: H }),
        s("text", { x: 0, y: H + 13 }, short(low)), s("text", { x: W, y: H + 13, "text-anchor": "end" }, short(high)), s("text", { x: 0, y: 10 }, `${top} elements; heights by square root`)),
      el("p", { class: "dim" }, el("span", { class: "key", style: "--c: var(--right)" }, "right"), el("span", { class: "key", style: "--c: var(--wrong)" }, "computed"), outside));
  }
  function gradients(f) {
    if (!f.gradients.length) {
      const why = f.state === "latent" ? "No backward pass ran over it." : f.code === "INP206" || f.words.length ? null : "The gradients were not compared, or do not differ.";
      return why ? el("section", {}, el("h3", {}, "Gradients"), el("p", { class: "dim" }, why)) : null;
    }
    const top = Math.max(...f.gradients.map((g) => g.max_rel || 0)) || 1;
    const more = f.gradients_wrong - f.gradients.length;
    return el("section", {}, el("h3", {}, "Gradients, right against computed"),
      el("p", {}, `${f.gradients_wrong} of ${plural(f.gradients_total, "gradient")} wrong${f.off ? `, ${f.off} off over all` : ""}`),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["parameter", "shape"].map((t) => el("th", {}, t)), el("th", {}, "max |g − r| / max |r|"),
        ["", "max |g − r|", "cosine", "worst, right → computed"].map((t) => el("th", { class: "number" }, t)))),
      el("tbody", {}, f.gradients.map((g) => el("tr", {}, el("td", { class: "mono" }, g.name), el("td", { class: "mono" }, `[${g.shape.join(", ")}]`),
        el("td", { class: "bar" }, el("span", { style: `width: ${g.max_rel === null ? 100 : Math.max(1, 100 * g.max_rel / top)}%` })),
        el("td", { class: "number mono" }, short(g.max_rel)), el("td", { class: "number mono" }, short(g.max_abs)),
        el("td", { class: "number mono" }, g.cosine === null ? "–" : g.cosine.toFixed(4)), el("td", { class: "number mono" }, g.worst ? `${g.worst[0]} → ${g.worst[1]}` : "–")))))),
      more > 0 ? el("p", { class: "dim" }, `... and ${more} more`) : null,
      el("div", { class: "pictures" }, f.gradients.filter((g) => g.histogram).map(histogram)));
  }
  function facts(f) {
    const [before, now] = f.versions;
    const version = before === null || now === null ? null
      : before === now ? `Version ${before} → ${now}: PyTorch's own check does not see this write.`
      : f.code >= "INP200" ? `Version ${before} → ${now}: PyTorch does not check it here.` : `Version ${before} → ${now}: PyTorch refuses to use it in backward.`;
    return [version, f.raised ? `PyTorch said: ${f.raised}` : null, f.also.length ? `The line also overwrote ${f.also.join("; ")}.` : null, f.note ? `Note: ${f.note}` : null]
      .filter(Boolean).map((text) => el("p", { class: "dim" }, text));
  }
  function detail(i) {
    const f = findings[i];
    const first = tests[f.tests[0]][0];
    const sides = f.steps.filter((x) => x.kind !== "used"), used = f.steps.filter((x) => x.kind === "used");
    $("detail").replaceChildren(
      el("h2", {}, f.headline),
      el("p", {}, el("span", { class: `tag ${f.state}` }, f.state), rules[f.code][1]),
      f.words.length ? el("pre", { class: "words" }, f.words.join("\n")) : el("div", {}, facts(f)),
      f.steps.length ? timeline(f) : el("p", { class: "dim" }, "No place in the source is known."),
      el("div", { class: "sides" }, sides.map(code)),
      used.length ? el("div", { style: "margin-top: .75rem" }, used.map(code)) : "",
      values(f) || "", gradients(f) || "",
      f.fix ? el("section", {}, el("h3", {}, "Instead"), el("p", { class: "fix" }, f.fix)) : "",
      el("section", {}, el("h3", {}, plural(f.test_count, "test")),
        el("ul", {}, f.tests.slice(0, 20).map((t) => el("li", { class: "mono" }, tests[t][0]))),
        f.test_count > 20 ? el("p", { class: "dim" }, `... and ${f.test_count - 20} more`) : null,
        el("p", {}, "See it again: ", el("code", {}, `pytest '${first}' ${f.options}`)),
        el("p", {}, "Allow it: ", el("code", {}, `@pytest.mark.inplace_safe(allow=["${f.code}"], reason="...")`)),
        el("p", {}, "Read about the rule: ", el("code", {}, `pytest --inplace-explain=${f.code}`))));
    $("detail").scrollTop = 0;
  }

  // -- moving about --------------------------------------------------------------------------------
  function current() {
    const match = /^#f(\d+)$/.exec(location.hash);
    return match && findings[match[1]] ? Number(match[1]) : null;
  }
  function markCurrent() {
    for (const r of rows[tab]) {
      if (r.row.getAttribute("href") === location.hash) r.row.setAttribute("aria-current", "true");
      else r.row.removeAttribute("aria-current");
    }
  }
  function open() {
    const i = current();
    if (i !== null) detail(i);
    else $("detail").replaceChildren(el("p", { class: "dim" }, findings.length ? "Choose a finding." : "There are no findings."));
    markCurrent();
  }
  function step(by) {
    const links = rows[tab].map((r) => r.row).filter((row) => !row.hidden && (row.href || row.tabIndex === 0));
    if (!links.length) return;
    const at = links.findIndex((row) => row === document.activeElement || (document.activeElement === document.body && row.hasAttribute("aria-current")));
    const next = links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    if (next.href) location.hash = next.getAttribute("href");
  }
  function theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    for (const canvas of document.querySelectorAll("canvas")) canvas.redraw();
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "Escape") { clear(); document.activeElement.blur(); return; }
    if (typing) return;
    const tabs = document.activeElement.getAttribute("role") === "tab";
    if (tabs && /^Arrow(Left|Right)$/.test(event.key)) {
      show(tab === "findings" ? "tests" : "findings");
      $(`tab-${tab}`).focus();
    } else if (event.key === "/") $("search").focus();
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "ArrowDown" && $("list").contains(document.activeElement)) step(1);
    else if (event.key === "ArrowUp" && $("list").contains(document.activeElement)) step(-1);
    else if (event.key === "t") theme();
    else return;
    event.preventDefault();
  });
  for (const id of ["search", "rule", "state", "module", "file"]) $(id).addEventListener("input", filter);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("tab-findings").addEventListener("click", () => show("findings"));
  $("tab-tests").addEventListener("click", () => show("tests"));
  $("theme").addEventListener("click", theme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const c of document.querySelectorAll("canvas")) c.redraw(); });
  window.addEventListener("hashchange", open);

  const bad = findings.filter((f) => f.state !== "accepted").length;
  const unchecked = tests.filter((t) => t[1] === "unchecked").length;
  $("verdict").textContent = `${plural(tests.length - unchecked, "test")} checked, ${plural(findings.length, "finding")}`
    + (findings.length - bad ? `, ${findings.length - bad} of them accepted` : "") + (unchecked ? `, ${plural(unchecked, "test")} not checked` : "");
  $("verdict").className = bad ? "bad" : "good";
  $("about").textContent = Object.entries(about).map(([name, value]) => `${name} ${value}`).join(", ");
  document.title = `${plural(findings.length, "finding")} - pytest-inplace`;
  show(findings.length ? "findings" : "tests");
  if (current() === null && findings.length) history.replaceState(null, "", "#f0");
  open();
  document.documentElement.dataset.ready = "yes";
})();
