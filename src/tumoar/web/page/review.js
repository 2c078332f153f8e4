// A review: controls around the view, strokes to the server, and what comes back.

import { bytes, follow, get, send } from "./talk.js";
import { fillPath, flood, PLANES, stamp, toRuns } from "./draw.js";
import { View } from "./view.js";

const find = (id) => document.getElementById(id);
const MR_WINDOWS = { "full range": [0, 1], "dark tissue": [0, 0.5], "bright tissue": [0.4, 1], "middle": [0.2, 0.8] };
const CT_WINDOWS = { "soft tissue (−100 to 200 HU)": [-100, 200], "brain (0 to 80 HU)": [0, 80], "stroke (20 to 50 HU)": [20, 50] };
const TOOLS = { v: "look", b: "brush", e: "eraser", f: "fill", c: "cut", d: "contour" };
const PAINTS = { brush: true, fill: true, contour: true, eraser: false, cut: false };
const PATHS = ["fill", "cut", "contour"]; // tools that are drawn around something

let view = null;
let review = null; // { key, about, state, tool, … } of the review that is open
let say = () => {};

export function closeReview() {
  review?.leave.abort();
  review = null;
}

export async function openReview(key, tell) {
  say = tell;
  const page = find("review");
  page.dataset.state = "waiting";
  find("loading").hidden = false;
  if (!View.possible()) {
    page.dataset.state = "absent";
    throw new Error("This browser cannot show the slices, because it lacks WebGL2. Use another browser.");
  }
  const about = await get(`/api/reviews/${key}`);
  const path = `/api/reviews/${key}-${about.result}`; // refused if another result takes its place
  const mine = { key, path, about, state: about.state, tool: "look", versions: {}, plane: PLANES[0], leave: new AbortController() };
  review = mine;
  document.title = `${about.name} – tumoar`;
  find("title").textContent = about.name;
  const first = Math.max(0, about.contrasts.findIndex((c) => c.name === about.first));
  view ??= listen(new View(find("slices"), find("above")));
  const voxels = await bytes(`${path}/contrasts/${first}`);
  if (review !== mine) return;
  if (matchMedia("(max-width: 900px)").matches) view.layout = "axial";
  for (const box of document.getElementsByName("layout")) box.checked = box.value === view.layout;
  await view.open(about, voxels);
  view.fill = Number(find("fill").value);
  describe(about, first);
  await Promise.all(about.structures.map(async ({ name }, s) => {
    view.setMask("automatic", s, await bytes(`${path}/automatic/${name}`));
  }));
  await update(about.state);
  if (review !== mine) return;
  choose(0, true);
  setTool("look");
  find("loading").hidden = true;
  page.dataset.state = "ready";
  page.dataset.key = key;
  follow(`${path}/events`, mine.leave.signal, (state) => review === mine && update(state), (error) => say(error.message));
}

// ---- what the page shows ------------------------------------------------------------------------------------

/* Volumes from 100 cm³ on need no decimals, and little room. */
function written(cm3) {
  return cm3.toFixed(cm3 < 100 ? 2 : 0);
}

function describe(about, first) {
  const badges = [badge(about.status, about.status === "OK" ? "ok" : "")];
  find("badges").replaceChildren(...badges, ...about.stamps.map((stamp) => badge(stamp, "quiet")));
  find("contrasts").replaceChildren(...about.contrasts.map(({ name }, i) => choice("contrast", String(i), name, i === first)));
  windows(first);
  const options = [["", "outlines only"]];
  for (const { name, predicted } of about.structures) if (predicted) options.push([`bands ${name}`, `${name}: bands of an expert's border`]);
  for (const { name } of about.structures) options.push([`map ${name}`, `${name}: share of the samples`]);
  find("chance").replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  find("structures").tBodies[0].replaceChildren(...about.structures.map(structureRow));
  find("notes").hidden = !about.notes.length;
  find("notes").querySelector("ul").replaceChildren(...about.notes.map((note) => made("li", note)));
  find("export").textContent = about.has_series ? "Export masks, RTSTRUCT and SEG" : "Export masks";
}

const made = (tag, text = "", values = {}) => Object.assign(document.createElement(tag), { textContent: text, ...values });
const badge = (text, kind) => made("span", text, { className: `badge ${kind}` });

function choice(name, value, text, checked) {
  const label = made("label");
  label.append(made("input", "", { type: "radio", name, value, checked }), made("span", text));
  return label;
}

function windows(number) {
  const { name, window: own } = review.about.contrasts[number];
  const rows = name.startsWith("CT")
    ? Object.entries(CT_WINDOWS).map(([text, ends]) => [text, ends.map((hu) => (255 * (hu - own[0])) / (own[1] - own[0]))])
    : Object.entries(MR_WINDOWS).map(([text, ends]) => [text, ends.map((share) => 255 * share)]);
  find("window").replaceChildren(...rows.map(([text, ends]) => new Option(text, ends.join(" "))));
}

function structureRow({ name, color }, s) {
  const row = made("tr");
  const eye = made("input", "", { type: "checkbox", checked: true, ariaLabel: `show ${name}` });
  eye.addEventListener("change", () => {
    view.shown[s] = eye.checked;
    view.solid();
    view.overlay();
  });
  const button = made("button", "", { className: "name", type: "button" });
  const chip = made("i");
  chip.style.background = color;
  button.append(chip, made("span", name));
  button.addEventListener("click", () => choose(s, true));
  for (const cell of [eye, button]) row.insertCell().append(cell);
  row.insertCell().className = "n";
  row.insertCell().className = "n";
  return row;
}

// Take over a state of the server: fetch what differs, then show it.
async function update(state) {
  const mine = review;
  const seen = state.versions;
  await Promise.all(mine.about.structures.map(async ({ name }, s) => {
    if (mine.versions[name] === seen[name] || (mine.versions[name] ?? -1) > seen[name]) return;
    mine.versions[name] = seen[name];
    view.setMask("now", s, await bytes(`${mine.path}/masks/${name}`));
  }));
  if (review !== mine || state.revision < mine.state.revision) return;
  const ended = mine.state.sampling.state === "running" && state.sampling.state === "done";
  mine.state = state;
  view.pending = null;
  view.solid();
  table(state);
  panel(state, ended);
  view.overlay();
  where();
}

function table(state) {
  const rows = find("structures").tBodies[0].rows;
  let some = false;
  review.about.structures.forEach(({ name }, s) => {
    const volume = state.volumes[name];
    const known = volume.low !== null;
    some ||= known;
    rows[s].classList.toggle("empty", volume.cm3 === 0);
    rows[s].cells[2].textContent = written(volume.cm3);
    rows[s].cells[3].textContent = known ? `${written(volume.low)} – ${written(volume.high)}` : "–";
    rows[s].cells[3].title = known ? explain(volume.what) : "";
    rows[s].querySelector(".name span").classList.toggle("changed", state.corrected.includes(name));
  });
  find("interval-note").textContent = some
    ? `${intervals(state.volumes)}. They return when you sample again.`
    : "";
}

// What the intervals are, and of which structures.
function intervals(volumes) {
  const kinds = {};
  for (const [name, { low, what }] of Object.entries(volumes)) if (low !== null) (kinds[what] ??= []).push(name);
  return Object.entries(kinds).map(([what, names]) => `${explain(what)}: ${names.join(", ")}`).join("; ");
}

const explain = (what) => (what.startsWith("spread") ? `${what}, too narrow to serve as an uncertainty` : what);

function panel(state, ended) {
  find("undo").disabled = !state.can_undo;
  find("redo").disabled = !state.can_redo;
  const n = state.strokes.length;
  find("between").disabled = n < 2;
  find("count").textContent = n ? `${n} correction${n > 1 ? "s" : ""}` : "No corrections yet";
  find("strokes").replaceChildren(...[...state.strokes].reverse().map((s) => {
    const time = new Date(s.when).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    return made("li", `${s.kind} ${s.structure}: ${s.voxels} voxels, ${time}${s.who ? `, ${s.who}` : ""}`, { value: s.id });
  }));
  const { sampling } = state;
  const running = sampling.state === "running";
  find("sample").disabled = running || !state.can_sample;
  find("stop").hidden = find("share").hidden = !running;
  find("share").value = sampling.share;
  const left = sampling.share > 0.05 ? `, about ${span((sampling.seconds * (1 - sampling.share)) / sampling.share)} left` : "";
  const words = {
    idle: state.why_not,
    running: `Sampling: ${span(sampling.seconds)} elapsed${left}`,
    done: `Sampled in ${span(sampling.seconds)}: ${sampling.changed.length ? `${sampling.changed.join(", ")} changed` : "nothing changed"}. X shows before and after.`,
    stopped: "Stopped. Your corrections are kept; nothing else changed.",
    failed: sampling.message,
  };
  find("sampling").textContent = words[sampling.state];
  if (ended) say("");
  const { approved } = state;
  const date = approved && new Date(approved.when).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  find("approved").textContent = approved ? `Approved by ${approved.who}, ${date}${approved.comment ? `: ${approved.comment}` : ""}` : "";
}

export const span = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

function where() {
  if (!review) return;
  const names = view.names();
  find("where").textContent = `voxel ${view.at.join(", ")}: ${names.length ? names.join(", ") : "no structure"}`;
}

// ---- controls -----------------------------------------------------------------------------------------------

function choose(s, jump) {
  view.active = s;
  [...find("structures").tBodies[0].rows].forEach((row, i) => {
    row.classList.toggle("active", i === s);
    row.querySelector(".name").setAttribute("aria-pressed", i === s);
  });
  meaning();
  const middle = jump && center(s);
  if (middle) view.moveTo(middle);
  else view.overlay();
}

// The voxel of a structure that is nearest to its center.
function center(s) {
  const [X, Y] = view.shape;
  const [all, bit] = view.bits(s);
  const sum = [0, 0, 0];
  let n = 0;
  const each = (tell) => {
    for (let i = 0; i < all.length; i++) if (all[i] & bit) tell([i % X, Math.floor(i / X) % Y, Math.floor(i / (X * Y))]);
  };
  each((at) => {
    n++;
    at.forEach((value, axis) => (sum[axis] += value));
  });
  if (!n) return null;
  let [best, found] = [Infinity, null];
  each((at) => {
    const far = at.reduce((total, value, axis) => total + ((value - sum[axis] / n) * view.spacing[axis]) ** 2, 0);
    if (far < best) [best, found] = [far, at];
  });
  return found;
}

function setTool(tool) {
  review.tool = tool;
  for (const box of document.getElementsByName("tool")) box.checked = box.value === tool;
  view.cursor = null;
  meaning();
  view.overlay();
}

function meaning() {
  const name = review.about.structures[view.active]?.name ?? "";
  const words = {
    look: "Drag to move through the images.",
    brush: `What you paint is ${name}.`,
    eraser: `What you paint is not ${name}.`,
    fill: `Draw around a piece: all inside is ${name}. A click fills a hole.`,
    contour: `Draw the whole outline of ${name} in this slice: it replaces the one that was there.`,
    cut: `Draw around a piece: nothing inside is ${name}. A click removes a piece.`,
  };
  find("meaning").textContent = words[review.tool];
}

const radius = () => Number(find("radius").value);

function setRadius(value) {
  find("radius").value = value;
  find("radius-out").textContent = `${radius()} mm`;
  if (view?.cursor) {
    view.cursor.radius = radius();
    view.overlay();
  }
}

// Send something that changes the review; what the server answers is shown at once.
async function act(path, body) {
  const mine = review;
  try {
    const state = await send(`${mine.path}/${path}`, body);
    say("");
    if (review === mine && state.versions) await update(state);
    return state;
  } catch (error) {
    view.pending = null;
    view.overlay();
    say(error.message);
    return null;
  }
}

const who = () => (/^\p{L}[\p{L}\p{N}_.\- ]{0,15}$/u.test(find("initials").value) ? find("initials").value : "");

function post(pending, inside) {
  const runs = toRuns(pending.bitmap, view.shape, pending.plane, pending.index);
  if (!runs.length) return;
  const stroke = { structure: review.about.structures[view.active].name, runs, who: who() };
  if (review.tool === "contour") act("contours", { ...stroke, axis: pending.plane.axis });
  else act("strokes", { ...stroke, inside });
}

function between() {
  act("between", { structure: review.about.structures[view.active].name, who: who() });
}

function toggleBefore() {
  view.before = !view.before;
  find("before").setAttribute("aria-pressed", view.before);
  find("before-note").hidden = !view.before;
  view.solid();
  view.overlay();
  where();
}

function begin(plane) {
  const bitmap = new Uint8Array(view.shape[plane.u] * view.shape[plane.v]);
  const color = PAINTS[review.tool] ? view.structures[view.active].color : "#ffffff";
  return { plane, index: view.at[plane.axis], bitmap, color, path: null };
}

const sizes = (plane) => [[view.shape[plane.u], view.shape[plane.v]], [view.spacing[plane.u], view.spacing[plane.v]]];

// ---- pointer, wheel and keys --------------------------------------------------------------------------------

function listen(made) {
  const above = find("above");
  let drag = null;
  const point = (event) => {
    const box = above.getBoundingClientRect();
    return [((event.clientX - box.left) * above.width) / box.width, ((event.clientY - box.top) * above.height) / box.height];
  };
  const go = (tile, u, v) => {
    const at = [...made.at];
    [at[tile.plane.u], at[tile.plane.v]] = [u, v];
    made.moveTo(at);
  };

  above.addEventListener("pointerdown", (event) => {
    if (!review || drag) return;
    above.focus({ preventScroll: true });
    above.setPointerCapture(event.pointerId);
    const [x, y] = point(event);
    const hit = made.find(x, y);
    if (!hit) {
      drag = { kind: "turn", x, y };
      return;
    }
    review.plane = hit.tile.plane;
    if (event.button !== 0 || event.shiftKey) {
      drag = { kind: "pan", tile: hit.tile, x, y };
    } else if (review.tool === "look") {
      drag = { kind: "look", tile: hit.tile };
      go(hit.tile, hit.u, hit.v);
    } else {
      const pending = begin(hit.tile.plane);
      const isPath = PATHS.includes(review.tool);
      drag = { kind: "paint", tile: hit.tile, pending, inside: PAINTS[review.tool], last: [hit.u, hit.v] };
      if (isPath) pending.path = [[hit.u, hit.v]];
      else stamp(pending.bitmap, ...sizes(hit.tile.plane), drag.last, drag.last, radius());
      made.pending = pending;
      made.overlay();
    }
  });

  above.addEventListener("pointermove", (event) => {
    if (!review) return;
    const [x, y] = point(event);
    if (!drag) {
      const hit = made.find(x, y);
      const isBrush = review.tool === "brush" || review.tool === "eraser";
      made.cursor = hit && isBrush ? { plane: hit.tile.plane, u: hit.u, v: hit.v, radius: radius() } : null;
      if (isBrush) made.overlay();
      return;
    }
    if (drag.kind === "turn") made.turn((x - drag.x) / made.scale, (y - drag.y) / made.scale);
    if (drag.kind === "pan") made.pan(drag.tile, x - drag.x, y - drag.y);
    [drag.x, drag.y] = [x, y];
    if (drag.kind === "turn" || drag.kind === "pan") return;
    const { u, v } = made.locate(drag.tile, x, y);
    if (drag.kind === "look") return go(drag.tile, u, v);
    const { pending } = drag;
    if (pending.path) pending.path.push([u, v]);
    else stamp(pending.bitmap, ...sizes(pending.plane), drag.last, [u, v], radius());
    drag.last = [u, v];
    made.cursor = null;
    made.overlay();
  });

  const end = (event) => {
    const done = drag;
    drag = null;
    if (!review || done?.kind !== "paint") return;
    const { pending } = done;
    if (event.type === "pointercancel") {
      made.pending = null;
      made.overlay();
      return;
    }
    if (pending.path) enclose(pending, done.last);
    pending.path = null;
    made.overlay();
    if (pending.bitmap.includes(1)) post(pending, done.inside);
    else made.pending = null;
  };
  above.addEventListener("pointerup", end);
  above.addEventListener("pointercancel", end);
  above.addEventListener("pointerleave", () => {
    if (!made.cursor) return;
    made.cursor = null;
    made.overlay();
  });
  above.addEventListener("contextmenu", (event) => event.preventDefault());
  above.addEventListener("wheel", (event) => {
    event.preventDefault();
    const hit = review && made.find(...point(event));
    if (!hit) return;
    if (event.ctrlKey) {
      const at = [...made.at];
      [at[hit.tile.plane.u], at[hit.tile.plane.v]] = [hit.u, hit.v];
      return made.setZoom(made.zoom * (event.deltaY < 0 ? 1.25 : 0.8), at);
    }
    review.plane = hit.tile.plane;
    step(hit.tile.plane.axis, event.deltaY < 0 ? 1 : -1);
  }, { passive: false });

  made.onmove = where;
  controls(made);
  return made;
}

// What a path encloses; a click instead of a path fills a hole, or takes a whole piece.
function enclose(pending, last) {
  const [size] = sizes(pending.plane);
  if (pending.path.length > 2) return fillPath(pending.bitmap, size, pending.path);
  if (review.tool === "contour") return;
  const inside = view.structureSlice(pending.plane, pending.index, view.active);
  const at = last.map(Math.round);
  const filled = flood(inside, size, at);
  const wanted = review.tool === "cut" ? 1 : 0;
  if (filled && inside[at[0] + size[0] * at[1]] === wanted) pending.bitmap.set(filled);
}

function step(axis, by) {
  const at = [...view.at];
  at[axis] += by;
  view.moveTo(at);
}

function paintHere() {
  if (!(review.tool === "brush" || review.tool === "eraser")) return;
  const pending = begin(review.plane);
  const at = [view.at[review.plane.u], view.at[review.plane.v]];
  stamp(pending.bitmap, ...sizes(review.plane), at, at, radius());
  view.pending = pending;
  view.overlay();
  post(pending, PAINTS[review.tool]);
}

function controls(made) {
  find("contrasts").addEventListener("change", async (event) => {
    windows(Number(event.target.value));
    try {
      made.setImage(await bytes(`${review.path}/contrasts/${event.target.value}`));
      made.setWindow(...find("window").value.split(" ").map(Number));
    } catch (error) {
      say(error.message);
    }
  });
  find("window").addEventListener("change", (event) => made.setWindow(...event.target.value.split(" ").map(Number)));
  find("chance").addEventListener("change", async (event) => {
    const [style, name] = event.target.value.split(" ");
    const part = style === "bands" ? "predicted" : "probabilities";
    const color = review.about.structures.find((s) => s.name === name)?.color;
    try {
      made.chance = style ? { style, color, values: await bytes(`${review.path}/${part}/${name}`) } : null;
    } catch (error) {
      say(error.message);
    }
    made.overlay();
  });
  find("fill").addEventListener("input", (event) => {
    made.fill = Number(event.target.value);
    made.overlay();
  });
  find("layouts").addEventListener("change", (event) => {
    made.arrange(event.target.value);
    review.plane = PLANES.find((plane) => plane.name === event.target.value) ?? review.plane;
  });
  find("tools").addEventListener("change", (event) => setTool(event.target.value));
  find("radius").addEventListener("input", () => setRadius(radius()));
  find("slice-up").addEventListener("click", () => step(review.plane.axis, 1));
  find("slice-down").addEventListener("click", () => step(review.plane.axis, -1));
  find("zoom-in").addEventListener("click", () => made.setZoom(made.zoom * 1.5));
  find("zoom-out").addEventListener("click", () => made.setZoom(made.zoom / 1.5));
  find("before").addEventListener("click", toggleBefore);
  for (const name of ["undo", "redo", "sample", "stop"]) find(name).addEventListener("click", () => act(name));
  find("between").addEventListener("click", between);
  find("initials").value = localStorage.getItem("initials") ?? "";
  find("approve").addEventListener("submit", async (event) => {
    event.preventDefault();
    localStorage.setItem("initials", find("initials").value);
    if (await act("approve", { initials: find("initials").value, comment: find("comment").value, revision: review.state.revision })) find("comment").value = "";
  });
  find("export").addEventListener("click", async () => {
    find("exported").textContent = "Writing…";
    const done = await act("export");
    find("exported").textContent = done ? `Written to ${done.files[0].split("/")[0]}: ${summary(done.files)}` : "";
  });
  document.addEventListener("keydown", (event) => {
    if (!review || find("review").dataset.state !== "ready" || event.altKey) return;
    if (event.target.matches("input:not([type=radio], [type=checkbox], [type=range]), select, textarea")) return;
    if (onKey(event)) event.preventDefault();
  });
}

function summary(files) {
  const masks = files.filter((name) => name.endsWith(".nii.gz")).length;
  return [`${masks} masks`, ...files.filter((name) => name.endsWith(".dcm")).map((name) => name.split("/").pop())].join(", ");
}

function onKey(event) {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) {
    if (key === "z") act(event.shiftKey ? "redo" : "undo");
    else if (key === "y") act("redo");
    return key === "z" || key === "y";
  }
  if (TOOLS[key]) setTool(TOOLS[key]);
  else if (key === "[" || key === "]") setRadius(radius() + (key === "]" ? 0.5 : -0.5));
  else if (key === "x") toggleBefore();
  else if (key === "i") between();
  else if (key === "s" && !find("sample").disabled) act("sample");
  else if (/^[1-9]$/.test(key) && review.about.structures[key - 1]) choose(key - 1, true);
  else if (event.target.matches("input, summary, button") && event.target !== find("above")) return false;
  else if (key === "Enter") paintHere();
  else return move(key);
  return true;
}

// Arrow keys follow the screen: the patient's right is on the left, and the front is up or on the left.
function move(key) {
  const { plane } = review;
  if (key === "PageUp" || key === "PageDown") {
    step(plane.axis, key === "PageUp" ? 1 : -1);
    return true;
  }
  const tile = view.tiles().find((t) => t.plane === plane);
  const across = tile?.right ? 1 : -1;
  const moves = { ArrowLeft: [plane.u, -across], ArrowRight: [plane.u, across], ArrowUp: [plane.v, 1], ArrowDown: [plane.v, -1] };
  if (!moves[key]) return false;
  step(...moves[key]);
  return true;
}
