"""Counts of samples: majority vote per voxel, vote fractions, and volumes per sample."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.model.joint import Labels
from tumoar.numerics.voxels import UNUSED
from tumoar.numerics.voxels_draw import count_labels
from tumoar.vocabulary.config import VoteRule
from tumoar.vocabulary.labels import LabelTable

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Certain = Mapping[int, Mask]
"""(X, Y, Z) voxels that belong to a structure for certain, in a chain without gaps, by structure."""


class Chain(NamedTuple):
    """Voxels that certainly belong to an organ, and how to find what is connected to them."""

    mask: Mask
    connect: Callable[[Mask, Mask], Mask]


class Votes(NamedTuple):
    """Final labels by majority vote, separately for each variable (section 2.3.1)."""

    l: npt.NDArray[np.uint8]
    z: npt.NDArray[np.uint8]
    y: npt.NDArray[np.uint8]


class Tally:
    """Counts labels per voxel and volumes per sample; with `keep_samples`, stores compressed samples."""

    def __init__(self, labels: LabelTable, use: npt.NDArray[np.uint8], *, keep_samples: bool = False) -> None:
        self.labels = labels
        self.keep_samples = keep_samples
        self.kept: list[bytes] = []
        self.shape = use.shape
        self.at = np.flatnonzero(use != UNUSED)
        self.samples = 0
        self.l = np.zeros((labels.K, len(self.at)), np.uint8)
        self.z = np.zeros(len(self.at), np.uint8)
        self.y = np.zeros(len(self.at), np.uint8)
        self.volumes: list[npt.NDArray[np.int64]] = []

    def add(self, labels: Labels) -> None:
        """Add a sample; at most 255."""
        if self.samples == 255:
            raise ValueError("at most 255 samples can be counted")
        l, z, y = (v.ravel() for v in (labels.l, labels.z, labels.y))
        *structures, tumor, core = count_labels(self.at, l, z, y, self.l, self.z, self.y)
        self.samples += 1
        removed = 0 if self.labels.cavity is None else structures[self.labels.cavity]
        self.volumes.append(np.array([*structures, tumor - core, core - removed]))
        if self.keep_samples:
            self.kept.append(zlib.compress(np.stack([v[self.at] for v in (l, z, y)]).tobytes(), 1))

    def vote(self, rule: VoteRule = "volume", certain: Certain | None = None) -> Votes:
        """Majority for z and y, most frequent l; ties go to no tumor, and to the first structure.

        The "majority" rule takes each variable by itself, as in the paper. Tumor may then be voted where
        brain structures split their votes and background has the most, and thin organs outside the brain may
        have no majority anywhere. By "volume", l is restricted to the brain where tumor wins, and organs
        outside the brain get their mean volume in the samples. A cavity needs a majority. Structures in
        `certain` are connected (`add_thin_organs`).
        """
        certain = select_certain(self.labels, certain)
        z = 2 * self.z.astype(int) > self.samples
        y = 2 * self.y.astype(int) > self.samples
        cavity = self.labels.cavity
        if cavity is None:
            counts, is_cavity = self.l, None
        else:
            counts, is_cavity = self.l.copy(), 2 * self.l[cavity].astype(int) > self.samples
            counts[cavity] = 0
        l = counts.argmax(0)
        if rule == "volume":
            brain = np.flatnonzero(self.labels.in_brain)
            if certain:
                l = np.where(np.isin(l, list(certain)), _without(counts, list(certain)).argmax(0), l)
            chains = {k: Chain(mask.ravel()[self.at], self._connect) for k, mask in certain.items()}
            l = add_thin_organs(l, dict(enumerate(counts)), self.labels, self.samples, chains)
            l = np.where(z, brain[counts[brain].argmax(0)], l)
        if is_cavity is not None:
            l = np.where(is_cavity, cavity, l)
        return Votes(*(self._full(v, np.uint8) for v in (l, z, y)))

    def fraction(self, structures: tuple[str, ...] = (), tumor: tuple[str, ...] = ()) -> Field:
        """(X, Y, Z) fraction of samples with one of these structures, or with "core" or "edema" as tumor.

        Structures count also where tumor covers them.
        """
        votes = np.zeros(len(self.at), np.int64)
        for name in structures:
            votes += self.l[self.labels.l(name)]
        if "core" in tumor:
            votes += self.y
            if self.labels.cavity is not None:
                votes -= self.l[self.labels.cavity]
        if "edema" in tumor:
            votes += self.z - self.y
        return self._full(votes / np.float32(max(self.samples, 1)), np.float32)

    def entropy(self) -> Field:
        """(X, Y, Z) entropy in nats of the votes on l, plus that of the votes on none, edema and core."""
        out = np.zeros(len(self.at))
        p = np.arange(self.samples + 1) / max(self.samples, 1)
        nats = -p * np.log(np.where(p > 0, p, 1))
        for votes in (*self.l, self.samples - self.z, self.z - self.y, self.y):
            out += nats[votes]
        return self._full(out, np.float32)

    def iter_samples(self) -> Iterator[Votes]:
        """Iterate over the stored samples."""
        for packed in self.kept:
            l, z, y = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(3, -1)
            yield Votes(*(self._full(v, np.uint8) for v in (l, z, y)))

    def to_arrays(self) -> dict[str, npt.NDArray]:
        """Arrays of all counts, for storage."""
        volumes = np.array(self.volumes, np.int64).reshape(self.samples, self.labels.K + 2)
        kept = np.frombuffer(b"".join(self.kept), np.uint8)
        sizes = np.array([len(packed) for packed in self.kept], np.int64)
        return {"l": self.l, "z": self.z, "y": self.y, "volumes": volumes, "kept": kept, "sizes": sizes}

    def restore(self, arrays: Mapping[str, npt.NDArray]) -> None:
        """Restore counts from the arrays of `to_arrays`."""
        self.l, self.z, self.y = (arrays[name].copy() for name in "lzy")
        self.volumes = list(arrays["volumes"])
        self.samples = len(self.volumes)
        parts = np.split(arrays["kept"], np.cumsum(arrays["sizes"])[:-1]) if len(arrays["sizes"]) else []
        self.kept = [part.tobytes() for part in parts]

    def _connect(self, chosen: Mask, chain: Mask) -> Mask:
        full, core = (self._full(v, np.bool_) for v in (chosen, chain))
        return np.asarray(keep_connected(full, core).ravel()[self.at])

    def _full(self, values: npt.NDArray, dtype: npt.DTypeLike) -> npt.NDArray:
        out = np.zeros(self.shape, dtype)
        out.ravel()[self.at] = values
        return out


def add_thin_organs(
    l: npt.NDArray,
    votes: Mapping[int, npt.NDArray[np.uint8]],
    table: LabelTable,
    samples: int,
    chains: Mapping[int, Chain] | None = None,
) -> npt.NDArray:
    """Add organs outside the brain to the most frequent l, where their votes reach the threshold.

    `votes` maps each structure with votes to their number per voxel, out of `samples`. An organ with a chain
    has all voxels of it, and of the others those that are connected to it.
    """
    out, strongest = l.copy(), np.ones(l.shape)
    for organ in table.organs:
        parts = np.array([k for k in map(table.l, organ.structures) if k in votes], int)
        if len(parts) == 0 or table.in_brain[parts].any():
            continue
        of_parts = np.stack([votes[k] for k in parts])
        total = of_parts.sum(0, dtype=np.uint8)
        chain = (chains or {}).get(int(parts[0])) if len(organ.structures) == 1 else None
        if chain is None:
            strength = total / find_vote_threshold(total, samples)
        else:
            strength = total / find_vote_threshold(total, samples, chain.mask)
            strength[chain.mask] = np.inf
            strength[~chain.connect(strength >= 1, chain.mask)] = 0
        wins = strength >= strongest
        out[wins] = parts[of_parts[:, wins].argmax(0)]
        strongest[wins] = np.nextafter(strength[wins], np.inf)  # a tie goes to the first
    return out


def select_certain(table: LabelTable, certain: Certain | None) -> Certain:
    """The structures of `certain` that are organs outside the brain by themselves: others have no outline."""
    alone = {table.l(o.structures[0]) for o in table.organs if len(o.structures) == 1 and not o.tumor}
    return {k: mask for k, mask in (certain or {}).items() if k in alone and not table.in_brain[k]}


def find_vote_threshold(votes: npt.NDArray[np.uint8], samples: int, chain: Mask | None = None) -> int:
    """Find the number of votes at which an organ has its mean volume in the samples.

    At most a majority: voxels with a majority always belong to the organ, and so do those of a `chain`.
    """
    mean = votes.sum(dtype=np.int64) / max(samples, 1)
    if chain is not None:
        mean -= np.count_nonzero(chain)
        votes = votes[~chain]
    sizes = np.cumsum(np.bincount(votes.ravel(), minlength=samples + 1)[::-1])[::-1]
    return 1 + int(np.abs(sizes[1 : samples // 2 + 2] - mean).argmin())


def keep_connected(mask: Mask, chain: Mask) -> Mask:
    """The parts (26 neighbors) of a mask (X, Y, Z) that contain voxels of a chain; all if there is none."""
    parts, count = ndimage.label(mask, np.ones((3, 3, 3)))
    kept = np.bincount(parts[chain], minlength=count + 1) > 0
    kept[0] = False
    return np.asarray(kept[parts]) if kept.any() else mask


def _without(counts: npt.NDArray[np.uint8], structures: list[int]) -> npt.NDArray[np.uint8]:
    out = counts.copy()
    out[structures] = 0
    return out


def pool_tallies(tallies: Sequence[Tally]) -> Tally:
    """Pool the samples of several chains on the same voxels."""
    if len(tallies) == 1:
        return tallies[0]
    first = tallies[0]
    out = Tally(first.labels, np.zeros(first.shape, np.uint8))
    out.at = first.at
    out.l, out.z, out.y = (sum(getattr(t, name) for t in tallies) for name in "lzy")
    out.volumes = [row for t in tallies for row in t.volumes]
    out.kept = [packed for t in tallies for packed in t.kept]
    out.samples = len(out.volumes)
    return out
