// Outlines of masks as dashed, dotted or solid lines on a canvas over the slices.

// Closed loops of pixel corners around a mask; inside(a, b) tells whether a pixel belongs to it.
function traceLoops(inside, A, B) {
  const STEPS = [[1, 0], [0, 1], [-1, 0], [0, -1]];
  const BEGINS = [[0, 0], [1, 0], [1, 1], [0, 1]];
  const BESIDE = [[0, -1], [1, 0], [0, 1], [-1, 0]]; // the pixel to the right of each edge
  const leaving = new Map();
  for (let b = 0; b < B; b++)
    for (let a = 0; a < A; a++)
      if (inside(a, b))
        for (let d = 0; d < 4; d++) {
          const p = a + BESIDE[d][0], q = b + BESIDE[d][1];
          if (p >= 0 && q >= 0 && p < A && q < B && inside(p, q)) continue;
          const key = (a + BEGINS[d][0]) * (B + 1) + b + BEGINS[d][1];
          if (!leaving.has(key)) leaving.set(key, []);
          leaving.get(key).push(d);
        }
  const loops = [];
  while (leaving.size) {
    let [key, ways] = leaving.entries().next().value;
    let d = ways[0];
    const loop = [];
    while ((ways = leaving.get(key))) {
      const left = (d + 1) % 4;
      d = ways.includes(left) ? left : ways[0];
      ways.splice(ways.indexOf(d), 1);
      if (!ways.length) leaving.delete(key);
      const a = Math.floor(key / (B + 1)), b = key % (B + 1);
      loop.push([a, b]);
      key = (a + STEPS[d][0]) * (B + 1) + b + STEPS[d][1];
    }
    loops.push(loop);
  }
  return loops;
}

// Draws on `canvas` what `lines` (name, color, style, voxels) show in the slices of the viewer.
function drawLines(viewer, canvas, shape, lines) {
  if (canvas.width !== viewer.canvas.width || canvas.height !== viewer.canvas.height) {
    canvas.width = viewer.canvas.width;
    canvas.height = viewer.canvas.height;
  }
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const at = viewer.frac2vox(viewer.scene.crosshairPos);
  const [X, Y] = shape;
  const stride = [1, X, X * Y];
  viewer.screenSlices.forEach((tile, number) => {
    if (tile.axCorSag > 2) return;
    const axis = [2, 1, 0][tile.axCorSag];
    const [u, v] = [0, 1, 2].filter((i) => i !== axis);
    const [left, top, width, height] = tile.leftTopWidthHeight;
    // The map from voxels to pixels, from two points of the tile.
    const points = [0.3, 0.7].map((share) => [left + share * width, top + share * height]);
    const voxels = points.map(([x, y]) => viewer.screenXY2TextureFrac(x, y, number).map((f, i) => f * shape[i]));
    const scale = [(points[1][0] - points[0][0]) / (voxels[1][u] - voxels[0][u]), (points[1][1] - points[0][1]) / (voxels[1][v] - voxels[0][v])];
    if (!scale.every(Number.isFinite)) return;
    const x = (a) => points[0][0] + scale[0] * (a - voxels[0][u]);
    const y = (b) => points[0][1] + scale[1] * (b - voxels[0][v]);
    const zoom = Math.abs(scale[0]);
    pen.save();
    pen.beginPath();
    pen.rect(Math.min(left, left + width), top, Math.abs(width), height);
    pen.clip();
    for (const line of lines) {
      const start = at[axis] * stride[axis];
      const inside = (a, b) => line.voxels[start + a * stride[u] + b * stride[v]] > 0;
      const path = new Path2D();
      for (const loop of traceLoops(inside, shape[u], shape[v])) {
        loop.forEach(([a, b], i) => path[i ? "lineTo" : "moveTo"](x(a), y(b)));
        path.closePath();
      }
      const [dash, gap] = STYLES[line.style];
      pen.setLineDash(gap ? [dash * zoom, gap * zoom] : []);
      pen.lineWidth = Math.max(3, 1.2 * zoom);
      pen.strokeStyle = "#000";
      pen.stroke(path);
      pen.lineWidth = Math.max(1.5, (line.style === "solid" ? 0.5 : 0.8) * zoom);
      pen.strokeStyle = line.color;
      pen.stroke(path);
    }
    pen.restore();
  });
}
