// The calculator on the page of the table: fields, messages, picture and rows.  What is counted, ledger.js works out.
import { check, csv, evaluate, human, json, ledger, query, restore, table, written } from "./ledger.js";

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const grouped = (number) => number.toLocaleString("en");
const percent = (part, whole) => `${(Number((part * 10000n) / whole) / 100).toFixed(1)} %`;

const here = document.getElementById("calculate");
try {
  start(await (await fetch(new URL("../calculator.json", import.meta.url))).json());
} catch (error) {
  here.textContent = here.dataset.failed;
  console.warn(error);
}

function start(menu) {
  const { words } = menu;
  const say = (key, ...given) => given.reduce((text, value) => text.replace("{}", typeof value === "bigint" ? grouped(value) : value), words[key] ?? key);
  const root = new URL("..", import.meta.url);
  const asked = Object.fromEntries(new URLSearchParams(location.search));
  const { state, broken } = restore(menu, asked);
  const isModel = (name) => menu.sizes.every((size) => "BT".includes(size) || String(menu.models[name].sizes[size]) === String(state.sizes[size]));
  let model = Object.keys(menu.models).find(isModel) ?? "", last;
  const open = new Set();

  // --- the fields, each with its message ---
  const fields = {};
  const field = (name, label, control) => {
    const message = make("p", { class: "message", id: `calc-${name}-message` });
    control.id = `calc-${name}`;
    control.setAttribute("aria-describedby", message.id);
    fields[name] = { control, message };
    return make("div", { class: "field" }, make("label", { for: control.id }, ...label), control, message);
  };
  const chooser = (options, chosen) => {
    const control = make("select", {}, ...Object.entries(options).map(([value, text]) => make("option", { value }, text)));
    control.value = chosen;
    return control;
  };
  const names = { ...Object.fromEntries(Object.keys(menu.models).map((name) => [name, name])), "": say("own") };
  const sizeLabel = (name) => [make("var", {}, name), make("span", {}, say(name))];
  const form = make("form", { novalidate: "", autocomplete: "off" },
    make("fieldset", {}, make("legend", {}, say("model sizes")), field("model", [say("model")], chooser(names, model)),
      ...menu.sizes.map((name) => field(name, sizeLabel(name), make("input", { type: "text", inputmode: "numeric", maxlength: 20, value: state.sizes[name] })))),
    make("fieldset", {}, make("legend", {}, say("choices")),
      ...Object.entries(menu.questions).map(([name, ids]) => field(name, [say(name)], chooser(ids, state.choices[name])))));
  const notice = make("p", { class: "notice", role: "status" });
  const totals = make("output", { class: "totals", for: Object.values(fields).map(({ control }) => control.id).join(" ") });
  const result = make("div");
  here.replaceChildren(notice, form, totals, result);
  if (broken.length) notice.textContent = `${say("broken")} ${broken.join(", ")}`;

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    const name = target.id.slice("calc-".length);
    if (name === "model" && (model = target.value)) {
      Object.assign(state.sizes, menu.models[model].sizes);
      Object.assign(state.choices, menu.models[model].choices);
      for (const [key, { control }] of Object.entries(fields)) control.value = state.sizes[key] ?? state.choices[key] ?? model;
    } else if (menu.sizes.includes(name)) {
      state.sizes[name] = target.value;
      if (!"BT".includes(name)) fields.model.control.value = model = Object.keys(menu.models).find(isModel) ?? "";
    } else if (name !== "model") state.choices[name] = target.value;
    notice.textContent = "";
    update();
    if (last) history.replaceState(history.state, "", `?${query(menu, state)}${location.hash}`);
  });
  update();

  // --- what follows from them ---
  function update() {
    const { errors, sizes } = check(menu, state);
    for (const [name, { control, message }] of Object.entries(fields)) {
      const [key, ...given] = errors[name] ?? [];
      control.toggleAttribute("aria-invalid", Boolean(key));
      message.textContent = key ? say(key, ...given) : "";
    }
    const repeated = !errors.g && !errors.h && sizes.g !== sizes.h && menu.repeated.includes(state.choices.attention);
    fields.g.message.classList.toggle("remark", repeated);
    if (repeated) fields.g.message.textContent = say("grouped", sizes.h);
    last = Object.keys(errors).length ? null : ledger(menu, state.choices, sizes);
    result.hidden = !last;
    totals.replaceChildren(...(last ? sums(last, sizes) : [make("p", {}, say("no total"))]));
    if (last) result.replaceChildren(picture(last), rows(last, sizes), take(last));
    for (const link of document.querySelectorAll('td > a[href*="#saved-"]')) if (!here.contains(link)) worked(link, last && sizes);
    for (const link of document.querySelectorAll("a[data-same-section]")) link.search = last ? query(menu, state) : "";
  }

  function sums({ block, outside, model: whole }, { L }) {
    const sum = (title, bytes, note) => make("div", {}, make("span", {}, title), make("strong", {}, human(bytes)),
      make("span", { class: "exact" }, `${grouped(bytes)} B`), make("span", {}, note));
    return [sum(say("one block"), block, ""), sum(say("whole model"), whole, say("made of", L, human(outside)))];
  }

  function picture({ rows: all, block }) {
    const shown = all.filter(({ within, count }) => within && count);
    const bar = make("div", { class: "bar", role: "img" });
    const stages = {};
    for (const { line, storage, count } of shown) {
      const text = `${storage.name}: ${human(count)}, ${percent(count, block)}`, share = Number((count * 10000n) / block);
      const part = make("span", { class: line.stage, title: text }, share >= 300 ? make("code", share < 1200 ? { class: "tight" } : {}, storage.name) : "");
      part.style.flexGrow = share;
      bar.append(part);
      bar.setAttribute("aria-label", `${bar.getAttribute("aria-label") ?? `${say("picture")}.`} ${text};`);
      stages[line.stage] = (stages[line.stage] ?? 0n) + count;
    }
    const legend = Object.entries(stages).map(([stage, bytes]) => make("span", { class: stage }, `${say(stage)} ${percent(bytes, block)}`));
    return make("figure", {}, bar, make("figcaption", {}, ...legend));
  }

  function rows({ rows: all, block, outside, model: whole }, sizes) {
    const head = [["layer"], ["tensor"], ["shape"], ["dtype"], ["bytes", "number"], ["", "number"]];
    const cells = head.map(([key, css]) => (key ? make("th", { scope: "col", class: css }, say(key)) : make("td")));
    const body = make("tbody");
    const total = (title, bytes) => body.append(make("tr", { class: "total" }, make("th", { scope: "row", colspan: 4 }, title),
      make("td", { class: "number" }, grouped(bytes)), make("td", { class: "number" }, human(bytes))));
    const sorted = [...all].sort((a, b) => b.within - a.within);
    sorted.forEach((row, n) => {
      const { line, within, storage, bytes, count } = row;
      if (n && !within && sorted[n - 1].within) total(say("one block"), block);
      const title = sorted[n - 1]?.line === line ? "" : line.path ? make("a", { href: new URL(line.path, root) }, line.title) : line.title;
      const tensor = storage ? make("code", { class: storage.needed ? "saved" : "unneeded" }, storage.name) : say("nothing");
      const tr = make("tr", {}, make("td", {}, title), make("td", {}, tensor));
      body.append(tr);
      if (!storage) return tr.append(make("td"), make("td"), make("td", { class: "number" }, "0"), make("td"));
      const id = `calc-row-${n}`, key = `${line.title} ${storage.name}`;
      const button = make("button", { type: "button", "aria-expanded": open.has(key), "aria-controls": id, title: say("derive") }, grouped(count));
      tr.append(make("td", { class: "form" }, storage.shape.map((size) => written(size)).join(" × ") || say("scalar")), make("td", {}, storage.dtype),
        make("td", { class: "number" }, button), make("td", { class: "number" }, count === bytes ? human(bytes) : say("shared")));
      const detail = make("tr", { class: "detail", id }, make("td", { colspan: 6 }, make("div", {}, ...derivation(row, sizes))));
      detail.hidden = !open.has(key);
      button.addEventListener("click", () => {
        detail.hidden = !detail.hidden;
        button.setAttribute("aria-expanded", !detail.hidden);
        open[detail.hidden ? "delete" : "add"](key);
      });
      body.append(detail);
    });
    total(say("outside"), outside);
    total(`${say("whole model")}: ${grouped(sizes.L)} × ${human(block)} + ${human(outside)}`, whole);
    const caption = make("caption", {}, say("in a block"));
    return make("div", { class: "scroll", tabindex: 0 }, make("table", { class: "ruled" }, caption, make("thead", {}, make("tr", {}, ...cells)), body));
  }

  function derivation({ storage, bytes, count }, sizes) {
    const filled = written(storage.bytes, (size) => sizes[size]);
    const places = storage.places.flatMap((place, n) => [n ? " · " : "", make("code", {}, place)]);
    const notes = [count === bytes ? "" : say("shared"), storage.once ? say("once") : "", storage.needed ? "" : say("unneeded")].filter(Boolean);
    const link = storage.path ? make("a", { href: new URL(storage.path, root) }, say("page")) : "";
    return [make("span", { class: "form" }, written(storage.bytes), " = ", filled, ` = ${grouped(bytes)} B`),
      make("span", {}, `${say("place")} `, ...places), ...notes.map((note) => make("span", {}, note)), link];
  }

  // A row of the static table, known by its link: what its closed form comes to at these sizes, in the chosen dtype.
  function worked(link, sizes) {
    const { cells } = link.closest("tr"), [, layer, implementation] = /([\w-]+)(?:\/|\.md)#saved-(.*)$/.exec(link.href);
    const device = cells[2].textContent.startsWith("CUDA") ? "cuda" : "cpu";
    const dtype = menu.questions.dtype[state.choices.dtype], numbers = menu.table[`${layer} ${implementation}`]?.[device][state.choices.dtype];
    const bytes = sizes && numbers?.map((n) => evaluate(menu.storages[n].bytes, sizes)).reduce((sum, n) => sum + n, 0n);
    const note = cells[5].querySelector("small") ?? cells[5].appendChild(make("small"));
    note.textContent = bytes === undefined || bytes === null ? "" : `${dtype}: ${human(bytes)}`;
  }

  function take(found) {
    const rowsOf = table(found), { block, outside, model: whole } = found;
    const download = (name, type, text) => {
      const button = make("button", { type: "button" }, `${say("download")} ${name}`);
      button.addEventListener("click", () => {
        const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
        link.click();
        URL.revokeObjectURL(link.href);
      });
      return button;
    };
    const data = { ...state, rows: rowsOf, block, outside, model: whole };
    return make("p", { class: "take" }, make("a", { href: `?${query(menu, state)}#calculator` }, say("link")),
      download("saved.csv", "text/csv", csv(rowsOf)), download("saved.json", "application/json", json(data)));
  }
}
