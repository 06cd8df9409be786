"""Small file systems of their own, where they may be mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def mount(folder: Path, options: str) -> bool:
    """Mount an empty file system in memory at FOLDER; False where that is not allowed."""
    if sys.platform != "linux" or os.geteuid() or not shutil.which("mount"):
        return False
    command = ["mount", "-t", "tmpfs", "-o", options, "faults", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def remount(folder: Path, options: str) -> None:
    """Change the options of what is mounted at FOLDER."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def unmount(folder: Path) -> None:
    """Take away what is mounted at FOLDER, if anything is."""
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[bool]:
    """Mount a file system in memory at the new FOLDER for a while; give False where it cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    done = mount(folder, options)
    try:
        yield done
    finally:
        unmount(folder)
