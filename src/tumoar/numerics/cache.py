"""Choose a private folder for compiled kernels.

numba unpickles, and thus executes, the files in its cache. A folder is used only if it belongs to the user
and is not writable by others, only the user and root can change its parents, and every cache file in it
belongs to the user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ACL = "system.posix_acl_access"
KEPT = (".nbi", ".nbc")
"""Suffixes of cache files; other files in the folder are not read."""


class Place(NamedTuple):
    """A cache folder and its name for display."""

    folder: Path
    name: str


def list_places(asked: str, package: Path, below: str) -> Iterator[Place]:
    """Candidate folders in numba's order: as requested, in the package, in the user's cache."""
    if asked:
        yield Place(Path(asked) / below, "NUMBA_CACHE_DIR")
    yield Place(package / "__pycache__", "the package")
    caches = user_caches()
    if caches is not None:
        yield Place(caches / "numba" / below, "the user's cache")
        yield Place(caches / "tumoar" / below, "the user's cache")


def user_caches() -> Path | None:
    """The user's cache folder; None if there is none."""
    given = os.environ.get("XDG_CACHE_HOME") or ""
    if os.path.isabs(given):
        return Path(given)
    home = os.environ.get("HOME") or ""
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(home) / ".cache" if os.path.isabs(home) and home != "/" else None


def choose_place(candidates: Iterable[Place]) -> Place | None:
    """The first private and writable candidate; it is created if necessary."""
    for place in candidates:
        try:
            folder = place.folder.absolute()
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if is_private(folder) and os.access(folder, os.W_OK | os.X_OK):
                return place._replace(folder=folder)
        except (OSError, ValueError, RuntimeError):  # null byte in the name, circular links
            continue
    return None


def is_private(folder: Path) -> bool:
    """Whether only the user and root can write to this folder or replace it."""
    for path in (folder, folder.resolve()):
        if not all(_is_safe_parent(parent) for parent in path.parents):
            return False
    state = os.stat(folder)
    if not (stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not _is_open(folder, state)):
        return False
    with os.scandir(folder) as entries:
        return all(_is_own_file(entry) for entry in entries if entry.name.endswith(KEPT))


def _is_safe_parent(path: Path) -> bool:
    state = os.lstat(path)
    if state.st_uid not in (0, os.geteuid(), *_unmapped()):
        return False
    # In a sticky folder such as /tmp, others can add files but not move those of the user.
    return stat.S_ISLNK(state.st_mode) or bool(state.st_mode & stat.S_ISVTX) or not _is_open(path, state)


def _is_own_file(entry: os.DirEntry[str]) -> bool:
    state = entry.stat(follow_symlinks=False)
    return (
        stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not _is_open(Path(entry.path), state)
    )


def _is_open(path: Path, state: os.stat_result) -> bool:
    """Whether others can write to it; a private group of the user does not count."""
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and not (_is_own_group(state.st_gid) and not _has_acl(path))


def _is_own_group(number: int) -> bool:
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return group.gr_gid == me.pw_gid and group.gr_name == me.pw_name and set(group.gr_mem) <= {me.pw_name}


def _has_acl(path: Path) -> bool:
    """Whether there is an access control list; group permissions then show its mask."""
    try:
        os.getxattr(path, ACL)
    except (OSError, AttributeError):
        return False
    return True


def _unmapped() -> tuple[int, ...]:
    """Owner id of root and other unmapped users in a rootless container."""
    try:
        if Path("/proc/self/uid_map").read_text(encoding="utf-8").split() == ["0", "0", "4294967295"]:
            return ()
        return (int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="utf-8")),)
    except (OSError, ValueError):
        return ()
