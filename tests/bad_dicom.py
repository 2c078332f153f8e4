"""Ways to spoil a series of slices, each with the id, kind and sentence of its refusal."""

from __future__ import annotations

import numpy as np
from pydicom import dcmread
from rt_files import save

from tumoar.vocabulary.errors import ChannelError, GeometryError, UnreadableFileError


def drop(*which):
    return lambda folder: [p.unlink() for p in folder if dcmread(p).InstanceNumber in which]


def edited(change, numbers=None):
    def edit(paths):
        for path in paths:
            data = dcmread(path)
            if numbers is None or data.InstanceNumber in numbers:
                change(data)
                save(data, path)

    return edit


def move(mm):
    def change(data):
        data.ImagePositionPatient = [float(v) + d for v, d in zip(data.ImagePositionPatient, mm)]

    return change


def tilt(data):
    data.ImagePositionPatient[1] = float(data.ImagePositionPatient[1]) + 0.1 * float(data.InstanceNumber)


def turn(data):
    """A tenth of a degree in its plane: too little to make it a series of its own."""
    u, v = np.array([float(x) for x in data.ImageOrientationPatient]).reshape(2, 3)
    angle = np.radians(0.1)
    pair = np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u
    data.ImageOrientationPatient = [f"{x:.10g}" for x in np.concatenate(pair)]


def widen(data):
    data.PixelSpacing = [f"{1.01 * float(x):.10g}" for x in data.PixelSpacing]


def assign(**values):
    def change(data):
        for name, value in values.items():
            if value is None:
                del data[name]
            else:
                setattr(data, name, value)

    return change


BAD = {
    "missing slice": ("B45", GeometryError, "slice missing between 49.1 and 55.1", drop(4)),
    "uneven": ("B45", GeometryError, "not evenly spaced", edited(move([0, 0, 0.7]), {4})),
    "slice aside": ("B45", GeometryError, "not stacked in line", edited(move([2.0, 0, 0]), {4})),
    "slice forward": ("B45", GeometryError, "not stacked in line", edited(move([0, -30.0, 0]), {3})),
    "tilted": ("B28", GeometryError, "tilted against their stack", edited(tilt)),
    "same place": ("B46", ChannelError, "1 slice shares a position with", edited(move([0, 0, 3.0]), {5})),
    "two echoes": ("B46", ChannelError, "2 series", edited(assign(EchoTime="90"), {1, 2, 3, 4})),
    "localizer": ("B46", ChannelError, "2 series", edited(assign(Rows=5), {2})),
    "other direction": (
        "B46", ChannelError, "2 series", edited(assign(ImageOrientationPatient=[0, 1, 0, 0, 0, 1]), {2})
    ),
    "no orientation": ("B47", GeometryError, "no usable", edited(assign(ImageOrientationPatient=None), {2})),
    "long directions": (
        "B47", GeometryError, "directions", edited(assign(ImageOrientationPatient=[2, 0, 0, 0, 1, 0]))
    ),
    "no position": ("B47", GeometryError, "no usable", edited(assign(ImagePositionPatient=None), {2})),
    "no spacing": ("B47", GeometryError, "no usable", edited(assign(PixelSpacing=None), {2})),
    "a slice turned": ("B47", GeometryError, "change within", edited(turn, {3})),
    "a slice of other pixels": ("B47", GeometryError, "change within", edited(widen, {3})),
    "spacing 0": ("B13", GeometryError, "voxel size", edited(assign(PixelSpacing=[0, 1]))),
    "spacing 100": ("B16", GeometryError, "voxel size", edited(assign(PixelSpacing=[100, 100]))),
    "other frame": ("B33", GeometryError, "frames", edited(assign(FrameOfReferenceUID="1.9"), {3})),
    "other patient": ("B34", GeometryError, "different patients", edited(assign(PatientID="x"), {3})),
    "mosaic": (
        "B49", ChannelError, "mosaic", edited(assign(ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"]))
    ),
    "pixels short": ("B48", UnreadableFileError, "pixel data", edited(assign(PixelData=b"1234"), {3})),
    "no pixels": ("B48", UnreadableFileError, "pixel data", edited(assign(PixelData=None), {3})),
    "color": ("B48", UnreadableFileError, "gray", edited(assign(SamplesPerPixel=3), {3})),
    "bits": ("B48", UnreadableFileError, "pixel data", edited(assign(BitsAllocated=13), {3})),
}  # fmt: skip
