(async () => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const section = get("viewer");

  if (!document.createElement("canvas").getContext("webgl2")) {
    section.dataset.state = "absent";
    get("no-viewer").hidden = false;
    return;
  }

  const { Niivue, NVImage } = niivue;
  const viewer = new Niivue({
    logLevel: "error",
    backColor: [0, 0, 0, 1],
    crosshairColor: [0.95, 0.75, 0.3, 0.7],
    crosshairWidth: 0.6,
    crosshairGap: 5,
    isRadiologicalConvention: true,
    sagittalNoseLeft: true,
    multiplanarShowRender: 0,
    multiplanarPadPixels: 4,
    dragAndDropEnabled: false,
    isColorbar: false,
    fontMinPx: 10,
    show3Dcrosshair: false,
  });
  await viewer.attachToCanvas(get("slices"));
  viewer.setSliceType(viewer.sliceTypeMultiplanar);

  const read = (nifti, options) =>
    NVImage.loadFromBase64({ base64: nifti, name: "volume.nii.gz", cal_min: 0, cal_max: 255, colorbarVisible: false, ...options });

  // All volumes lie on one grid, so that a layer changes by taking over the voxels of another.
  const known = new Map();
  const voxels = async (row) => {
    if (!known.has(row)) known.set(row, (await read(row.nifti)).img);
    return known.get(row);
  };

  const legend = get("legend");
  const channels = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  const colors = () => {
    const rows = [[0, "", 0, 0, 0, 0], ...data.legend.map((row) => [row.index, row.name, ...channels(row.color), 255])];
    const [I, names, R, G, B, A] = rows[0].map((_, i) => rows.map((row) => row[i]));
    return { I, labels: names, R, G, B, A };
  };

  viewer.addColormap("votes", COLORS);

  const base = await read(data.contrasts[FIRST].nifti, { colormap: "gray" });
  const labels = await read(data.labels);
  known.set(data.contrasts[FIRST], base.img);
  const all = labels.img; // labels.img holds what the legend shows
  const choose = () => {
    const kept = new Uint8Array(256);
    for (const box of legend.querySelectorAll("input:checked")) kept[box.value] = box.value;
    labels.img = all.map((label) => kept[label]);
  };
  const lines = [];
  for (const row of data.lines ?? []) lines.push({ ...row, voxels: await voxels(row) });
  const drawScene = viewer.drawScene.bind(viewer);
  viewer.drawScene = () => {
    const drawn = drawScene();
    const shows = (_, i) => document.querySelector(`#lines input[value="${i}"]`).checked;
    drawLines(viewer, get("over"), data.grid.shape, lines.filter(shows));
    return drawn;
  };
  let map = null; // the third layer, and what it shows
  let shown = null;

  const style = () => {
    const opacity = Number(get("opacity").value);
    labels.opacity = get("show-labels").checked ? opacity : 0;
    if (map) map.opacity = shown ? opacity : 0;
    get("bar").hidden = !shown;
    if (shown) {
      get("bar-name").textContent = shown.name === "entropy" ? "entropy, nats" : `P(${shown.name})`;
      get("bar-top").textContent = shown.name === "entropy" ? shown.top.toFixed(2) : "1";
    }
    viewer.opts.atlasOutline = get("outline").checked && labels.opacity > 0 ? 1 : 0;
  };
  const draw = () => {
    style();
    viewer.updateGLVolume();
    tell();
  };

  // What lies under the crosshair.
  const tell = () => {
    const [x, y, z] = viewer.frac2vox(viewer.scene.crosshairPos);
    const [X, Y, Z] = data.grid.shape;
    if (Math.min(x, y, z) < 0 || x >= X || y >= Y || z >= Z) return;
    const at = x + X * (y + Y * z);
    const name = data.legend.find((row) => row.index === all[at])?.name ?? "background";
    const value = shown ? `, ${shown.name} ${((map.img[at] / 255) * shown.top).toFixed(2)}` : "";
    get("where").textContent = `voxel ${x}, ${y}, ${z}: ${name}${value}`;
  };
  viewer.onLocationChange = tell;

  get("contrast").addEventListener("change", async (event) => {
    base.img = await voxels(data.contrasts[event.target.value]);
    draw();
  });
  get("map").addEventListener("change", async (event) => {
    shown = event.target.value === "" ? null : data.maps[event.target.value];
    if (shown && map) map.img = await voxels(shown);
    if (shown && !map) {
      map = await read(shown.nifti, { colormap: "votes" });
      viewer.addVolume(map);
    }
    draw();
  });
  legend.addEventListener("change", () => {
    choose();
    draw();
  });
  get("lines")?.addEventListener("change", draw);
  for (const id of ["show-labels", "outline", "opacity"]) get(id).addEventListener("input", draw);

  choose();
  style();
  labels.setColormapLabel(colors());
  viewer.addVolume(base);
  viewer.addVolume(labels);
  viewer.scene.crosshairPos = viewer.mm2frac(data.center);
  viewer.drawScene();
  tell();
  section.dataset.state = "ready";
})();
