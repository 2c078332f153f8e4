// Slices and rendering. NiiVue draws the image; outlines, strokes and the letters of the sides are drawn on a
// canvas above it, from the same placement of the slices, so that they cannot disagree with the image.

import { PLANES, edges, stamp } from "./draw.js";

const BANDS = [[0.05, 0.95, 70], [0.25, 0.75, 130]]; // of the chance that an expert's structure has a voxel
const SIDES = [["L", "R"], ["P", "A"], ["I", "S"]]; // at the low and the high end of x, y and z
const WIDE = [[2, 0, 0, 0.62, 1], [1, 0.62, 0, 0.38, 0.5], [0, 0.62, 0.5, 0.38, 0.5]].map(tileAt); // by axis
const HIGH = [[2, 0, 0, 1, 0.6], [1, 0, 0.6, 0.5, 0.4], [0, 0.5, 0.6, 0.5, 0.4]].map(tileAt);
const { Niivue, NVImage } = niivue;

export class View {
  constructor(below, above) {
    this.canvas = below;
    this.above = above;
    this.pen = above.getContext("2d");
    // NiiVue takes over this context. Only slices that changed are drawn again: what is above them is cheap.
    below.getContext("webgl2", { alpha: true, antialias: false, preserveDrawingBuffer: true });
    this.fill = 0.25;
    this.outlines = true;
    this.before = false;
    this.chance = null; // { values, style: "map" or "bands", color }
    this.pending = null; // { plane, index, bitmap, color, path }
    this.cursor = null; // { plane, u, v, radius }
    this.small = document.createElement("canvas");
    this.layout = "planes";
    new ResizeObserver(() => requestAnimationFrame(() => this.data && this.draw())).observe(below);
  }

  static possible() {
    // Contexts are few, and are freed late: one answer is enough.
    View.can ??= Boolean(document.createElement("canvas").getContext("webgl2"));
    return View.can;
  }

  async open({ shape, spacing, structures }, voxels) {
    this.data = null;
    [this.shape, this.spacing, this.structures] = [shape, spacing, structures];
    const count = shape[0] * shape[1] * shape[2];
    const words = () => Array.from({ length: Math.ceil(structures.length / 32) }, () => new Uint32Array(count));
    [this.now, this.automatic] = [words(), words()]; // see `bits`; as corrected, and before
    this.shown = structures.map(() => true);
    this.active = 0;
    this.at = shape.map((n) => Math.floor(n / 2));
    this.zoom = 1;
    if (!this.nv) {
      this.nv = new Niivue({
        logLevel: "error",
        backColor: [0, 0, 0, 1],
        crosshairWidth: 0,
        isRadiologicalConvention: true,
        sagittalNoseLeft: true,
        multiplanarShowRender: 0,
        multiplanarPadPixels: 6,
        dragAndDropEnabled: false,
        isOrientationTextVisible: false,
        isOrientCube: true,
        isColorbar: false,
        show3Dcrosshair: false,
        isSliceMM: false,
        isNearestInterpolation: false,
        renderOverlayBlend: 1,
      });
      await this.nv.attachToCanvas(this.canvas);
    }
    for (const volume of [...this.nv.volumes]) this.nv.removeVolume(volume);
    this.base = await this.image(voxels, { colormap: "gray", cal_min: 0, cal_max: 255 });
    this.labels = null;
    this.nv.addVolume(this.base);
    this.data = { count };
    this.nv.scene.pan2Dxyzmm = [0, 0, 0, 1];
    await this.arrange(this.layout);
  }

  // A NIfTI file in memory, with x to the right, y to the front and z upward, centered.
  image(voxels, options) {
    const buffer = new ArrayBuffer(352 + voxels.length);
    const head = new DataView(buffer);
    const put16 = (at, ...values) => values.forEach((v, i) => head.setInt16(at + 2 * i, v, true));
    const put32 = (at, ...values) => values.forEach((v, i) => head.setFloat32(at + 4 * i, v, true));
    head.setInt32(0, 348, true);
    put16(40, 3, ...this.shape, 1, 1, 1, 1);
    put16(70, 2, 8); // unsigned bytes
    put32(76, 1, ...this.spacing, 1, 1, 1, 1);
    put32(108, 352, 1, 0);
    head.setUint8(123, 2); // mm
    put16(252, 0, 1);
    for (let i = 0; i < 3; i++) {
      const row = [0, 0, 0, this.edge(i, 0.5)];
      row[i] = this.spacing[i];
      put32(280 + 16 * i, ...row);
    }
    new Uint8Array(buffer, 344, 3).set([110, 43, 49]); // "n+1"
    new Uint8Array(buffer, 352).set(voxels);
    const { colormap = "", opacity = 1, cal_min, cal_max } = options;
    return NVImage.new(buffer, "image.nii", colormap, opacity, null, cal_min, cal_max, true);
  }

  // Position in mm of the lower edge of voxel `i` along an axis.
  edge(axis, i) {
    return (i - this.shape[axis] / 2) * this.spacing[axis];
  }

  colors() {
    const rows = [[0, 0, 0, 0], ...this.structures.map(({ color }) => [...rgb(color), 255])];
    const [R, G, B, A] = [0, 1, 2, 3].map((c) => rows.map((row) => row[c]));
    return { R, G, B, A, I: rows.map((_, i) => i), labels: ["", ...this.structures.map((s) => s.name)] };
  }

  setImage(voxels) {
    this.base.img = voxels;
    this.nv.updateGLVolume();
    this.draw();
  }

  setWindow(low, high) {
    [this.base.cal_min, this.base.cal_max] = [low, high];
    this.nv.updateGLVolume();
    this.draw();
  }

  // Where the voxels of structure s are marked: in words of 32 structures, and the bit in them.
  bits(s, which = "now") {
    return [this[which][s >> 5], 1 << (s & 31)];
  }

  // Bits of a mask, the lowest of each byte first.
  setMask(which, s, packed) {
    const [all, bit] = this.bits(s, which);
    for (let i = 0; i < all.length; i++) all[i] = (packed[i >> 3] >> (i & 7)) & 1 ? all[i] | bit : all[i] & ~bit;
  }

  async arrange(layout) {
    this.layout = layout;
    const kinds = { planes: "Multiplanar", axial: "Axial", coronal: "Coronal", sagittal: "Sagittal", "3d": "Render" };
    await this.solid();
    if (layout === "planes") this.nv.setCustomLayout(this.canvas.clientWidth > this.canvas.clientHeight ? WIDE : HIGH);
    else this.nv.clearCustomLayout();
    this.nv.setSliceType(this.nv[`sliceType${kinds[layout]}`]);
    this.draw();
  }

  // Structures as solids, for the rendering only: in slices they are drawn above the image.
  async solid() {
    if (this.layout !== "3d") {
      if (this.labels) this.nv.removeVolume(this.labels);
      this.labels = null;
      return;
    }
    const label = new Uint8Array(this.data.count);
    // Smaller structures are listed first and lie on top; the brain would hide all of them.
    const order = this.structures.map((_, s) => s).filter((s) => this.shown[s] && !this.structures[s].whole);
    for (const s of order.reverse()) {
      const [all, bit] = this.bits(s, this.before ? "automatic" : "now");
      for (let i = 0; i < label.length; i++) if (all[i] & bit) label[i] = s + 1;
    }
    if (this.labels) {
      this.labels.img = label;
      this.nv.updateGLVolume();
      return;
    }
    this.labels = await this.image(label, { cal_min: 0, cal_max: 255 });
    this.labels.setColormapLabel(this.colors());
    this.nv.addVolume(this.labels);
  }

  moveTo(voxel) {
    this.at = voxel.map((i, axis) => Math.max(0, Math.min(this.shape[axis] - 1, Math.round(i))));
    this.draw();
    this.onmove?.();
  }

  setZoom(zoom, middle = this.at) {
    const pan = this.nv.scene.pan2Dxyzmm;
    const next = Math.max(1, Math.min(12, zoom));
    const change = pan[3] - next;
    for (let i = 0; i < 3; i++) pan[i] = next === 1 ? 0 : pan[i] + change * this.edge(i, middle[i] + 0.5);
    pan[3] = next;
    this.zoom = next;
    this.draw();
  }

  pan(tile, dx, dy) {
    const pan = this.nv.scene.pan2Dxyzmm;
    pan[tile.plane.u] += ((tile.right ? dx : -dx) * Math.abs(tile.fov[0])) / tile.width;
    pan[tile.plane.v] -= (dy * Math.abs(tile.fov[1])) / tile.height;
    this.draw();
  }

  turn(dx, dy) {
    const scene = this.nv.scene;
    this.nv.setRenderAzimuthElevation(scene.renderAzimuth + dx / 2, scene.renderElevation + dy / 2);
  }

  // Slices on the screen: where the voxels of a plane lie on the canvas, in its own pixels.
  tiles() {
    return this.nv.screenSlices
      .filter((slice) => slice.axCorSag <= 2 && slice.AxyzMxy.length >= 4)
      .map((slice) => {
        let [left, top, width, height] = slice.leftTopWidthHeight;
        const mirrored = width < 0;
        if (mirrored) [left, width] = [left + width, -width];
        const tile = { plane: PLANES[slice.axCorSag], left, top, width, height, mirrored, low: slice.leftTopMM, fov: slice.fovMM };
        tile.right = this.toScreen(tile, 1, 0)[0] > this.toScreen(tile, 0, 0)[0]; // where u grows
        return tile;
      });
  }

  toScreen(tile, u, v) {
    const across = (this.edge(tile.plane.u, u + 0.5) - tile.low[0]) / tile.fov[0];
    const up = (this.edge(tile.plane.v, v + 0.5) - tile.low[1]) / tile.fov[1];
    return [tile.left + tile.width * (tile.mirrored ? 1 - across : across), tile.top + tile.height * (1 - up)];
  }

  // The slice under a point of the canvas, and the place in it: integers are centers of voxels.
  find(x, y) {
    const tile = this.tiles().find((t) => x >= t.left && y >= t.top && x <= t.left + t.width && y <= t.top + t.height);
    return tile && { tile, ...this.locate(tile, x, y) };
  }

  locate(tile, x, y) {
    let across = (x - tile.left) / tile.width;
    if (tile.mirrored) across = 1 - across;
    const up = 1 - (y - tile.top) / tile.height;
    const { u, v } = tile.plane;
    const index = (axis, mm) => mm / this.spacing[axis] + this.shape[axis] / 2 - 0.5;
    return { u: index(u, tile.low[0] + across * tile.fov[0]), v: index(v, tile.low[1] + up * tile.fov[1]) };
  }

  slice(plane, index, take) {
    const [nu, nv] = [this.shape[plane.u], this.shape[plane.v]];
    const steps = [1, this.shape[0], this.shape[0] * this.shape[1]];
    const out = new Uint8Array(nu * nv);
    for (let v = 0, i = 0; v < nv; v++) {
      let at = index * steps[plane.axis] + v * steps[plane.v];
      for (let u = 0; u < nu; u++, i++, at += steps[plane.u]) out[i] = take(at);
    }
    return out;
  }

  structureSlice(plane, index, s, which = "now") {
    const [all, bit] = this.bits(s, which);
    return this.slice(plane, index, (at) => (all[at] & bit ? 1 : 0));
  }

  names(at = this.at) {
    const i = at[0] + this.shape[0] * (at[1] + this.shape[1] * at[2]);
    const inside = (_, s) => {
      const [all, bit] = this.bits(s, this.before ? "automatic" : "now");
      return all[i] & bit;
    };
    return this.structures.filter(inside).map((s) => s.name);
  }

  draw() {
    if (!this.data) return;
    const fraction = this.at.map((i, axis) => (i + 0.5) / this.shape[axis]);
    this.nv.scene.crosshairPos = this.nv.scene.crosshairPos.map((_, i) => fraction[i]);
    this.nv.drawScene();
    this.overlay();
  }

  // Outlines, strokes, crosshair and letters.
  overlay() {
    if (!this.data) return;
    [this.above.width, this.above.height] = [this.canvas.width, this.canvas.height];
    this.scale = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    for (const tile of this.tiles()) this.drawTile(tile);
  }

  drawTile(tile) {
    const { pen } = this;
    const { plane } = tile;
    const index = this.at[plane.axis];
    pen.save();
    pen.beginPath();
    pen.rect(tile.left, tile.top, tile.width, tile.height);
    pen.clip();
    const which = this.before ? "automatic" : "now";
    if (this.chance) this.drawChance(tile, index);
    const order = this.structures.map((_, s) => s).filter((s) => this.shown[s] && s !== this.active).reverse();
    if (this.shown[this.active]) order.push(this.active);
    for (const s of order) {
      const inside = this.structureSlice(plane, index, s, which);
      if (!inside.includes(1) && s !== this.active) continue;
      const { color } = this.structures[s];
      if (this.fill > 0 && !this.structures[s].whole) this.drawBitmap(tile, inside, rgb(color), 255 * this.fill);
      if (!this.outlines) continue;
      this.drawOutline(tile, inside, color, s === this.active ? 2.6 : 1.5, []);
      if (s !== this.active) continue;
      const other = this.structureSlice(plane, index, s, this.before ? "now" : "automatic");
      if (other.some((value, i) => value !== inside[i])) this.drawOutline(tile, other, "#ffffff", 1.2, [3, 4]);
    }
    if (this.pending && this.pending.plane === plane && this.pending.index === index) {
      this.drawBitmap(tile, this.pending.bitmap, rgb(this.pending.color), 190);
      this.drawPath(tile, this.pending.path);
    }
    if (this.cursor && this.cursor.plane === plane) this.drawCursor(tile);
    this.drawCrosshair(tile);
    this.drawSides(tile);
    pen.restore();
  }

  drawCrosshair(tile) {
    const [x, y] = this.toScreen(tile, this.at[tile.plane.u], this.at[tile.plane.v]);
    const gap = 9 * this.scale;
    this.pen.beginPath();
    for (const [from, to] of [[tile.left, x - gap], [x + gap, tile.left + tile.width]]) {
      this.pen.moveTo(from, y);
      this.pen.lineTo(to, y);
    }
    for (const [from, to] of [[tile.top, y - gap], [y + gap, tile.top + tile.height]]) {
      this.pen.moveTo(x, from);
      this.pen.lineTo(x, to);
    }
    [this.pen.strokeStyle, this.pen.lineWidth] = ["rgba(180,200,225,0.55)", this.scale];
    this.pen.stroke();
  }

  drawBitmap(tile, bitmap, color, alpha) {
    const value = pixel(color, alpha);
    this.drawPixels(tile, (i) => (bitmap[i] ? value : 0));
  }

  drawChance(tile, index) {
    const { values, style, color } = this.chance;
    const p = this.slice(tile.plane, index, (at) => values[at]);
    const heat = (value) => pixel([255, 255 - value, 120 * (1 - value / 255)], 60 + 0.6 * value);
    const bands = BANDS.map(([low, high, alpha]) => [255 * low, 255 * high, pixel(rgb(color), alpha)]);
    this.drawPixels(tile, (i) => {
      if (style === "map") return p[i] ? heat(p[i]) : 0;
      return bands.reduce((found, [low, high, value]) => (p[i] > low && p[i] < high ? value : found), 0);
    });
  }

  drawPixels(tile, put) {
    const [nu, nv] = [this.shape[tile.plane.u], this.shape[tile.plane.v]];
    const picture = new ImageData(nu, nv);
    const pixels = new Uint32Array(picture.data.buffer);
    for (let i = 0; i < nu * nv; i++) pixels[i] = put(i);
    [this.small.width, this.small.height] = [nu, nv];
    this.small.getContext("2d").putImageData(picture, 0, 0);
    const [x0, y0] = this.toScreen(tile, -0.5, -0.5);
    const [x1, y1] = this.toScreen(tile, nu - 0.5, nv - 0.5);
    this.pen.save();
    this.pen.imageSmoothingEnabled = false;
    this.pen.setTransform((x1 - x0) / nu, 0, 0, (y1 - y0) / nv, x0, y0);
    this.pen.drawImage(this.small, 0, 0);
    this.pen.restore();
  }

  drawOutline(tile, inside, color, width, dash) {
    const [nu, nv] = [this.shape[tile.plane.u], this.shape[tile.plane.v]];
    const lines = edges(inside, nu, nv);
    if (!lines.length) return;
    const { pen } = this;
    pen.beginPath();
    for (let i = 0; i < lines.length; i += 4) {
      pen.moveTo(...this.toScreen(tile, lines[i] - 0.5, lines[i + 1] - 0.5));
      pen.lineTo(...this.toScreen(tile, lines[i + 2] - 0.5, lines[i + 3] - 0.5));
    }
    pen.lineCap = "square";
    pen.setLineDash(dash.map((d) => d * this.scale));
    if (!dash.length) {
      [pen.strokeStyle, pen.lineWidth] = ["rgba(0,0,0,0.55)", (width + 1.4) * this.scale];
      pen.stroke();
    }
    [pen.strokeStyle, pen.lineWidth] = [color, width * this.scale];
    pen.stroke();
    pen.setLineDash([]);
  }

  drawPath(tile, path) {
    if (!path) return;
    this.pen.beginPath();
    for (const [u, v] of path) this.pen.lineTo(...this.toScreen(tile, u, v));
    [this.pen.strokeStyle, this.pen.lineWidth] = ["#fff", 1.5 * this.scale];
    this.pen.stroke();
  }

  // The border of the brush: exactly the voxels that a click would paint.
  drawCursor(tile) {
    const { u, v, radius } = this.cursor;
    const size = [this.shape[tile.plane.u], this.shape[tile.plane.v]];
    const bitmap = new Uint8Array(size[0] * size[1]);
    stamp(bitmap, size, [this.spacing[tile.plane.u], this.spacing[tile.plane.v]], [u, v], [u, v], radius);
    this.drawOutline(tile, bitmap, "#ffffff", 1.2, []);
  }

  // Letters of the sides, taken from the placement of the slice.
  drawSides(tile) {
    const { pen, scale } = this;
    const across = SIDES[tile.plane.u];
    const up = SIDES[tile.plane.v];
    const [left, right] = tile.right ? across : [...across].reverse();
    this.above.dataset[tile.plane.name] = `${left}${right}${up[1]}${up[0]}`; // left, right, top, bottom
    const middle = [tile.left + tile.width / 2, tile.top + tile.height / 2];
    const letters = [
      [left, tile.left + 5 * scale, middle[1], "left", "middle"],
      [right, tile.left + tile.width - 5 * scale, middle[1], "right", "middle"],
      [up[1], middle[0], tile.top + 5 * scale, "center", "top"],
      [up[0], middle[0], tile.top + tile.height - 5 * scale, "center", "bottom"],
    ];
    pen.lineJoin = "round";
    [pen.strokeStyle, pen.fillStyle, pen.lineWidth] = ["#000", "#fff", 4 * scale];
    for (const [letter, x, y, align, baseline] of letters) {
      const isSide = letter === "L" || letter === "R";
      pen.font = `${isSide ? 700 : 500} ${(isSide ? 19 : 14) * scale}px system-ui, sans-serif`;
      [pen.textAlign, pen.textBaseline] = [align, baseline];
      pen.strokeText(letter, x, y);
      pen.fillText(letter, x, y);
    }
    pen.font = `${12 * scale}px system-ui, sans-serif`;
    [pen.textAlign, pen.textBaseline] = ["left", "top"];
    const title = `${tile.plane.name} ${this.at[tile.plane.axis] + 1}/${this.shape[tile.plane.axis]}`;
    pen.strokeText(title, tile.left + 7 * scale, tile.top + 7 * scale);
    pen.fillText(title, tile.left + 7 * scale, tile.top + 7 * scale);
  }
}

function tileAt([axis, left, top, width, height]) {
  return { sliceType: 2 - axis, position: [left, top, width, height] };
}

const pixel = ([r, g, b], alpha) => ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
export const rgb = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
