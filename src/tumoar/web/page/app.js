// The list of results, and new cases: choose files, see what they are taken for, start, watch.

import { bytes, follow, get, put, send } from "./talk.js";
import { span } from "./review.js";

const WORDS = { read: "reading", place: "placing the atlas", fit: "fitting", sample: "sampling", write: "writing" };
const FILTERS = ["all", "needs review", "OK", "approved"];
const root = document.getElementById("begin");

let leave = null;
let say = () => {};
let filter = "all";
let about = null;
let place = { number: 0, name: "" };

const el = (tag, values = {}, ...inside) => {
  const node = Object.assign(document.createElement(tag), values);
  node.append(...inside);
  return node;
};
const button = (text, act, values = {}) => {
  const node = el("button", { type: "button", textContent: text, ...values });
  node.addEventListener("click", () => act(node));
  return node;
};
const part = (name) => root.querySelector(`[data-part="${name}"]`);

export function closeList() {
  leave?.abort();
  leave = null;
}

export async function openList(given, tell) {
  [about, say, leave] = [given, tell, new AbortController()];
  document.title = "tumoar";
  document.getElementById("title").textContent = "tumoar";
  document.getElementById("badges").replaceChildren();
  const section = (name, title, ...inside) => el("section", {}, el("h2", { textContent: title }), ...inside, Object.assign(el("div"), {}));
  root.replaceChildren(begin(), section("cases", "In progress"), section("results", "Results"));
  const [, cases, results] = root.children;
  cases.lastChild.dataset.part = "cases";
  results.lastChild.dataset.part = "results";
  results.lastChild.before(filters());
  list(await get("/api/list"));
  follow("/api/events", leave.signal, list, (error) => say(error.message));
}

// ---- results and cases --------------------------------------------------------------------------------------

let last = null;
const pictures = {};

function filters() {
  const box = el("div", { className: "choice", role: "radiogroup", ariaLabel: "Filter by status" });
  for (const name of FILTERS) {
    const input = el("input", { type: "radio", name: "filter", value: name, checked: name === filter });
    input.addEventListener("change", () => {
      filter = name;
      list(last);
    });
    box.append(el("label", {}, input, el("span", { textContent: name })));
  }
  return box;
}

function list(state) {
  last = state;
  part("cases").parentElement.hidden = !state.cases.length;
  part("cases").replaceChildren(...state.cases.map(caseRow));
  const rows = state.results.filter((row) => filter === "all" || row.state === filter);
  const table = el("table");
  const head = table.createTHead().insertRow();
  for (const text of ["result", "status", "GTV, cm³", "images", "written"]) head.append(el("th", { textContent: text }));
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    const name = row.state === "damaged" ? row.name : el("a", { href: `#/review/${row.key}`, textContent: row.name });
    const state = el("span", { className: `badge ${row.state === "OK" || row.state === "approved" ? "ok" : ""}`, textContent: row.reason || row.state });
    const written = row.when ? new Date(1000 * row.when).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "";
    for (const cell of [name, state, row.gtv == null ? "–" : Number(row.gtv).toFixed(2), (row.contrasts ?? []).join(", "), written]) line.insertCell().append(cell);
  }
  const none = el("p", { className: "quiet", textContent: state.results.length ? "None with this status." : "No results yet." });
  part("results").replaceChildren(rows.length ? el("div", { className: "scroll" }, table) : none);
}

// A refusal of the program without its identifier and file: what is wrong, and what to do.
function plain(text) {
  const [what, ...rest] = text.split(" | ");
  const { found, do: todo } = Object.fromEntries(rest.map((part) => part.split(/: (.*)/s)));
  return what.replace(/^E\d+-\S+ /, "") + (found ? ` (${found})` : "") + (todo ? `: ${todo}` : "");
}

function caseRow(row) {
  const box = el("div", { className: "case" });
  const title = el("div", { className: "row" }, el("strong", { textContent: row.name }), el("span", { className: "quiet", textContent: row.contrasts.join(", ") }));
  const act = (what) => async () => {
    try {
      await send(`/api/cases/${row.name}/${what}`);
    } catch (error) {
      say(error.message);
    }
  };
  box.append(title);
  if (row.state === "running" || row.state === "waiting") title.append(button("Cancel", act("stop")));
  else title.append(button(row.can_continue ? "Continue" : "Start again", act("resume"), { className: "main" }));
  const { progress } = row;
  if (!progress) {
    const words = { waiting: "Waits for the case before it.", stopped: "Stopped; what was computed is kept.", failed: plain(row.reason) };
    box.append(el("p", { className: row.state === "failed" ? "bad" : "quiet", textContent: words[row.state] ?? row.state }));
    return box;
  }
  const stages = el("div", { className: "stages" });
  const now = progress.stages.indexOf(progress.stage);
  progress.stages.forEach((stage, i) => stages.append(el("span", { className: i < now ? "done" : i === now ? "now" : "", textContent: WORDS[stage] })));
  const left = progress.left === null ? "" : ` · about ${span(progress.left)} left`;
  const { core, tumor } = progress.figures;
  const sizes = core === undefined ? "" : ` · core ${core.toFixed(1)} cm³, whole tumor ${tumor.toFixed(1)} cm³ in this sample`;
  box.append(stages, el("progress", { max: 1, value: progress.share, ariaLabel: `progress of ${row.name}` }), el("p", { className: "quiet", textContent: `elapsed ${span(progress.seconds)}${left}${sizes}` }), liveSlices(row));
  return box;
}

// The slices of a case: fetched again when the server has drawn them again.
function liveSlices({ name, live }) {
  const known = (pictures[name] ??= { version: null, image: el("img", { className: "live", hidden: true, alt: `Slices of ${name} in progress; the patient's right is on the left` }) });
  if (live && live !== known.version) {
    known.version = live;
    bytes(`/api/cases/${name}/live`).then((png) => {
      URL.revokeObjectURL(known.image.src);
      known.image.src = URL.createObjectURL(new Blob([png], { type: "image/png" }));
      known.image.hidden = false;
    }, () => (known.version = null));
  }
  return known.image;
}

// ---- a new case ---------------------------------------------------------------------------------------------

function begin() {
  const files = el("input", { type: "file", multiple: true, hidden: true });
  const folder = el("input", { type: "file", webkitdirectory: true, hidden: true });
  for (const input of [files, folder]) input.addEventListener("change", () => input.files.length && upload([...input.files]));
  const drop = el(
    "div",
    { className: "drop" },
    el("p", { textContent: "Drop NIfTI files or a DICOM folder of one patient here, or" }),
    el("div", { className: "row" }, button("Choose files", () => files.click()), button("Choose a folder", () => folder.click()), button("Browse this machine", browse)),
    files,
    folder,
    el("p", { className: "quiet", textContent: "Files stay on this machine: the page sends them to the server beside it, and nowhere else." }),
  );
  drop.querySelector(".row").style.justifyContent = "center";
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const found = [];
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    for (const entry of entries) await collect(entry, found);
    if (found.length) upload(found);
  });
  const next = el("div", { ariaLive: "polite" });
  next.dataset.part = "next";
  return el("section", {}, el("h2", { textContent: "New case" }), drop, next);
}

async function collect(entry, found) {
  if (entry.isFile) found.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
  else {
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) break;
      for (const child of some) await collect(child, found);
    }
  }
}

const tell = (...inside) => part("next").replaceChildren(...inside);
const quiet = (text) => el("p", { className: "quiet", textContent: text });

async function upload(files) {
  say("");
  try {
    const { upload } = await send("/api/uploads");
    const bar = el("progress", { max: files.length, value: 0 });
    tell(quiet("Copying files…"), bar);
    for (const file of files) {
      await put(`/api/uploads/${upload}?name=${encodeURIComponent(file.name)}`, file);
      bar.value += 1;
    }
    await look({ upload });
  } catch (error) {
    tell();
    say(error.message);
  }
}

async function browse() {
  try {
    const { entries } = await get(`/api/folders?number=${place.number}&name=${encodeURIComponent(place.name)}`);
    const chooser = el("select", { ariaLabel: "Folder" }, ...about.folders.map((name, i) => new Option(name, i, false, i === place.number)));
    chooser.addEventListener("change", () => {
      place = { number: Number(chooser.value), name: "" };
      browse();
    });
    const rows = entries.map(({ name, folder }) => {
      const short = name.split("/").pop();
      if (folder) return button(`${short}/`, () => ((place.name = name), browse()));
      return el("p", { className: "quiet", textContent: short });
    });
    const up = place.name ? [button("Up", () => ((place.name = place.name.split("/").slice(0, -1).join("/")), browse()))] : [];
    const use = button("Use the images of this folder", () => look({ ...place }), { className: "main" });
    tell(el("div", { className: "row" }, chooser, el("span", { textContent: place.name }), ...up, use), el("div", { className: "folder" }, ...rows));
  } catch (error) {
    say(error.message);
  }
}

async function look(where) {
  tell(quiet("Looking at the images…"), el("progress"));
  try {
    const found = await send("/api/inspect", where);
    form(found);
  } catch (error) {
    tell();
    say(error.message);
  }
}

function form({ found, images, contrasts }) {
  const table = el("table");
  const head = table.createTHead().insertRow();
  for (const text of ["image", "voxels", "mm", "looks like", "taken for"]) head.append(el("th", { textContent: text }));
  const body = table.createTBody();
  const choices = images.map((image) => {
    const line = body.insertRow();
    const select = el("select", { ariaLabel: `contrast of ${image.name}`, disabled: Boolean(image.refused) });
    select.append(new Option("not used", ""), ...contrasts.map((name) => new Option(name, name, false, name === image.guess && !image.refused)));
    const sure = image.confidence == null ? "" : ` ${Math.round(100 * image.confidence)} %`;
    const by = (numbers, digits) => (numbers ? numbers.map((n) => Number(n.toFixed(digits))).join(" × ") : "");
    for (const cell of [image.name, by(image.shape, 0), by(image.spacing, 2), image.looks_like + sure]) line.insertCell().append(cell);
    line.insertCell().append(select);
    for (const text of [plain(image.refused), ...image.notes].filter(Boolean)) {
      const cell = body.insertRow().insertCell();
      Object.assign(cell, { colSpan: 5, className: image.refused ? "bad" : "quiet", textContent: text });
    }
    return select;
  });
  const name = el("input", { required: true, maxLength: 64, pattern: "[A-Za-z0-9._+\\-]+", placeholder: "study-01", autocomplete: "off" });
  const option = (key, text) => {
    const box = el("input", { type: "checkbox", name: key });
    return el("label", {}, el("span", {}, box, ` ${text}`));
  };
  const options = [option("postop", "after surgery (outlines the cavity)"), option("fast", "quick preview")];
  const start = el("form", {}, el("label", {}, "Case name (no patient name)", name), ...options, el("button", { className: "main", textContent: "Start" }));
  start.addEventListener("submit", async (event) => {
    event.preventDefault();
    const chosen = choices.map((select, row) => ({ row, contrast: select.value })).filter(({ contrast }) => contrast);
    const flags = Object.fromEntries([...start.querySelectorAll("input[type=checkbox]")].map((box) => [box.name, box.checked]));
    try {
      await send("/api/cases", { name: name.value, found, images: chosen, options: flags });
      say("");
      tell();
    } catch (error) {
      say(error.message);
    }
  });
  tell(el("h2", { textContent: "Check what each image is taken for" }), el("div", { className: "scroll" }, table), start);
  name.focus();
}
