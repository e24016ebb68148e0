// Works out what refcheck/menu.py exports: evaluates its closed forms, counts each storage once, adds up.
// There is no formula here, and no page: the tests run this file in an engine of their own.

const rise = (power) => (power === 1 ? "" : [...`${power}`].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join(""));

// The exact value of a closed form, as [numerator, denominator].
function ratio(form, sizes) {
  let sum = [0n, 1n];
  for (const [top, bottom, factors] of form) {
    let [n, m] = [BigInt(top), BigInt(bottom)];
    for (const [base, power] of factors) {
      const value = typeof base === "string" ? sizes[base] : ceiling(ratio(base, sizes));
      if (typeof value !== "bigint") throw new RangeError(`no size ${base}`);
      if (power < 0) m *= value ** BigInt(-power);
      else n *= value ** BigInt(power);
    }
    sum = [sum[0] * m + n * sum[1], sum[1] * m];
  }
  return sum;
}
const ceiling = ([n, m]) => (n + m - 1n) / m; // of what is not negative

export function evaluate(form, sizes) {
  const [n, m] = ratio(form, sizes);
  if (n % m) throw new RangeError("a number of bytes that is not whole");
  return n / m;
}

// A closed form as text: in symbols, or with the sizes filled in.
export function written(form, show = (size) => size) {
  const factor = ([base, power]) => (typeof base === "string" ? show(base) : `⌈${written(base, show)}⌉`) + rise(Math.abs(power));
  const term = ([top, bottom, factors]) => {
    const over = factors.filter(([, power]) => power > 0).map(factor);
    const under = factors.filter(([, power]) => power < 0).map(factor);
    if (top !== 1 || !over.length) over.unshift(top);
    if (bottom !== 1) under.unshift(bottom);
    return over.join(" × ") + under.map((text) => ` / ${text}`).join("");
  };
  return form.map(term).join(" + ");
}

// Bytes with a binary unit, as refcheck.notation.human writes them.
export function human(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"];
  let power = 0;
  while (power < units.length - 1 && bytes >= 1024n ** BigInt(power + 1)) power += 1;
  const unit = 1024n ** BigInt(power);
  if (bytes % unit === 0n) return `${bytes / unit} ${units[power]}`;
  let cents = (bytes * 100n) / unit;
  const rest = 2n * ((bytes * 100n) % unit);
  if (rest > unit || (rest === unit && cents % 2n)) cents += 1n; // half to even, as Python does
  return `${cents / 100n}.${`${cents % 100n}`.padStart(2, "0")} ${units[power]}`;
}

const meets = (when, choices) => Object.entries(when).every(([question, ids]) => ids.includes(choices[question]));

// What a reader typed and chose: the sizes as whole numbers, and for each field that is wrong a message and its number.
export function check(menu, { sizes, choices }) {
  const errors = {}, known = {};
  for (const name of menu.sizes) {
    const text = String(sizes[name] ?? "").trim();
    const number = /^[-+]?\d+$/.test(text) && text.length < 40 ? BigInt(text.replace("+", "")) : null;
    if (!text) errors[name] = ["empty"];
    else if (!/^[-+]?\d+$/.test(text)) errors[name] = ["no number"];
    else if (text.startsWith("-") || number === 0n) errors[name] = ["small"];
    else if (number === null || number > BigInt(menu.limit)) errors[name] = ["large", BigInt(menu.limit)];
    else known[name] = number;
  }
  const { D, h, d, g } = known;
  if (D && h && d && h * d !== D) errors.D = ["h·d ≠ D", h * d];
  if (h && g && h % g) errors.g = ["g ∤ h", h];
  for (const [question, ids] of Object.entries(menu.questions)) if (!Object.hasOwn(ids, choices[question])) errors[question] = ["empty"];
  for (const { when, at, reason } of menu.refused) if (meets(when, choices)) errors[at] = [reason];
  return { errors, sizes: known };
}

// The parts that the choices call for, what each keeps, and the sums.  A name is one storage within its block.
export function ledger(menu, choices, sizes) {
  const rows = [], counted = { inside: {}, outside: {} };
  let block = 0n, once = 0n, outside = 0n;
  for (const line of menu.lines) {
    if (!meets(line.when, choices)) continue;
    const within = line.stage !== "outside";
    const kept = line.kept[choices.device][choices.dtype].map((n) => menu.storages[n]);
    if (!kept.length) rows.push({ line, within, bytes: 0n, count: 0n });
    for (const storage of kept) {
      const bytes = evaluate(storage.bytes, sizes);
      const seen = counted[within ? "inside" : "outside"];
      const first = seen[storage.name];
      if (first && (first.bytes !== bytes || first.dtype !== storage.dtype)) throw new Error(`two tensors that differ are called ${storage.name}`);
      const count = first ? 0n : bytes;
      seen[storage.name] = { bytes, dtype: storage.dtype };
      if (!within) outside += count;
      else if (storage.once) once += count;
      else block += count;
      rows.push({ line, within, storage, bytes, count });
    }
  }
  return { rows, block: block + once, outside, model: sizes.L * block + once + outside };
}

// The choice as a query, and back.  What can't be read is named, and the default stands in for all of it.
export function query(menu, { sizes, choices }) {
  const typed = menu.sizes.map((name) => name + String(sizes[name]).trim()).join("-");
  return [`sizes=${typed}`, ...Object.keys(menu.questions).map((name) => `${name}=${choices[name]}`)].join("&");
}

export function restore(menu, asked) {
  const { model, choices } = menu.default;
  const start = { sizes: { ...menu.models[model].sizes }, choices: { ...choices } };
  const state = { sizes: { ...start.sizes }, choices: { ...choices } };
  for (const part of asked.sizes === undefined ? [] : asked.sizes.split("-")) {
    const [, name, value] = /^([A-Za-z]+)(.*)$/.exec(part) ?? [null, part, ""];
    state.sizes[name] = value;
  }
  for (const name of Object.keys(menu.questions)) state.choices[name] = asked[name] ?? choices[name];
  const { errors } = check(menu, state);
  const broken = [...Object.keys(state.sizes).filter((name) => !menu.sizes.includes(name)), ...Object.keys(errors)];
  return broken.length ? { state: start, broken } : { state, broken };
}

// What is shown, for programs: CSV, and JSON with whole numbers of any length.
export function table(result) {
  return result.rows.filter((row) => row.storage).map(({ line, storage, within, bytes, count }) => ({
    stage: line.stage, layer: line.path.split("/")[1] ?? "", title: line.title, tensor: storage.name,
    shape: storage.shape.map((n) => written(n)).join(", "), dtype: storage.dtype, form: written(storage.bytes), bytes, counted: count,
  }));
}
export function csv(rows) {
  const cell = (value) => (/[",\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : `${value}`);
  return [Object.keys(rows[0]), ...rows.map(Object.values)].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}
export function json(data) {
  const marked = (_, value) => (typeof value === "bigint" ? `\u0001${value}` : value);
  return JSON.stringify(data, marked, 1).replace(/"\\u0001(\d+)"/g, "$1") + "\n";
}
