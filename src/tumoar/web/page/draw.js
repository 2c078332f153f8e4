// Voxels of strokes. A slice is a bitmap of `nu` columns and `nv` rows; (u, v) are (x, y), (x, z) or (y, z).

export const PLANES = [
  { name: "axial", axis: 2, u: 0, v: 1 },
  { name: "coronal", axis: 1, u: 0, v: 2 },
  { name: "sagittal", axis: 0, u: 1, v: 2 },
];

// Voxels whose center lies within `radius` mm of the segment from a to b, and those that it begins and ends in.
export function stamp(bitmap, [nu, nv], [su, sv], a, b, radius) {
  const set = (u, v) => {
    if (u >= 0 && v >= 0 && u < nu && v < nv) bitmap[u + nu * v] = 1;
  };
  set(Math.round(a[0]), Math.round(a[1]));
  set(Math.round(b[0]), Math.round(b[1]));
  const [du, dv] = [(b[0] - a[0]) * su, (b[1] - a[1]) * sv];
  const long = du * du + dv * dv;
  const from = (i, s) => Math.max(0, Math.floor(Math.min(a[i], b[i]) - radius / s));
  const to = (i, s, n) => Math.min(n - 1, Math.ceil(Math.max(a[i], b[i]) + radius / s));
  for (let v = from(1, sv); v <= to(1, sv, nv); v++) {
    for (let u = from(0, su); u <= to(0, su, nu); u++) {
      const [pu, pv] = [(u - a[0]) * su, (v - a[1]) * sv];
      const t = long ? Math.max(0, Math.min(1, (pu * du + pv * dv) / long)) : 0;
      if ((pu - t * du) ** 2 + (pv - t * dv) ** 2 <= radius * radius) set(u, v);
    }
  }
}

// Voxels whose center lies inside a closed path, also where the path goes around them more than once.
export function fillPath(bitmap, [nu, nv], path) {
  for (let v = 0; v < nv; v++) {
    const cuts = [];
    for (let i = 0; i < path.length; i++) {
      const [a, b] = [path[i], path[(i + 1) % path.length]];
      if (a[1] <= v !== b[1] <= v) cuts.push([a[0] + ((v - a[1]) / (b[1] - a[1])) * (b[0] - a[0]), a[1] <= v ? 1 : -1]);
    }
    cuts.sort(([a], [b]) => a - b);
    for (let i = 0, around = 0; i + 1 < cuts.length; i++) {
      around += cuts[i][1];
      if (!around) continue;
      const last = Math.min(nu - 1, Math.floor(cuts[i + 1][0]));
      for (let u = Math.max(0, Math.ceil(cuts[i][0])); u <= last; u++) bitmap[u + nu * v] = 1;
    }
  }
}

// The region of equal `inside` around a voxel; null for a hole that is open at the border of the slice.
export function flood(inside, [nu, nv], [u, v]) {
  const kind = inside[u + nu * v];
  const bitmap = new Uint8Array(nu * nv);
  const open = [[u, v]];
  while (open.length) {
    const [x, y] = open.pop();
    if (x < 0 || y < 0 || x >= nu || y >= nv) {
      if (kind) continue;
      return null;
    }
    const at = x + nu * y;
    if (bitmap[at] || inside[at] !== kind) continue;
    bitmap[at] = 1;
    open.push([x + 1, y], [x - 1, y], [x, y + 1], [x, y - 1]);
  }
  return bitmap;
}

// Runs (start, length, …) of the voxels of a slice in the volume, x fastest.
export function toRuns(bitmap, shape, plane, index) {
  const [nu, nv] = [shape[plane.u], shape[plane.v]];
  const steps = [1, shape[0], shape[0] * shape[1]];
  const runs = [];
  for (let v = 0; v < nv; v++) {
    for (let u = 0; u < nu; u++) {
      if (!bitmap[u + nu * v]) continue;
      const at = index * steps[plane.axis] + u * steps[plane.u] + v * steps[plane.v];
      const last = runs.length - 2;
      if (last >= 0 && runs[last] + runs[last + 1] === at) runs[last + 1]++;
      else runs.push(at, 1);
    }
  }
  return runs;
}

// Edges between voxels inside and outside, as line segments [u0, v0, u1, v1, …] at corners of voxels.
export function edges(inside, nu, nv) {
  const out = [];
  for (let v = 0; v <= nv; v++) {
    for (let u = 0; u < nu; u++) {
      const above = v < nv && inside[u + nu * v];
      const below = v > 0 && inside[u + nu * (v - 1)];
      if (!above === !below) continue;
      const n = out.length; // extend the segment before, if it continues
      if (n && out[n - 1] === v && out[n - 3] === v && out[n - 2] === u) out[n - 2] = u + 1;
      else out.push(u, v, u + 1, v);
    }
  }
  for (let u = 0; u <= nu; u++) {
    for (let v = 0; v < nv; v++) {
      const right = u < nu && inside[u + nu * v];
      const left = u > 0 && inside[u - 1 + nu * v];
      if (!right === !left) continue;
      const n = out.length;
      if (n && out[n - 2] === u && out[n - 4] === u && out[n - 1] === v) out[n - 1] = v + 1;
      else out.push(u, v, u, v + 1);
    }
  }
  return out;
}
