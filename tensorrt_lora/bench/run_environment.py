"""Where and with what a measurement was made: the facts that every record file opens with."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tensorrt_lora.utils.device import device_facts

_PACKAGES = ("tensorrt_lora", "torch", "triton", "flashinfer-python", "transformers", "numpy")


def hardware() -> dict[str, str]:
    """The device that `auto` resolves to, and the host."""
    return {**device_facts(), "machine": platform.machine(), "system": platform.system()}


def versions(*more: str) -> dict[str, str]:
    """Python and the packages that speed depends on, and `more`; "not installed" where one is missing."""
    found = {"python": platform.python_version()}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def commit() -> str | None:
    """The checkout's commit, with a note when files differ from it; None outside of a git checkout."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head} with local changes" if _git("status", "--porcelain", "--untracked-files=no") else head


def _git(*arguments: str) -> str | None:
    """Output of a git command in the package's checkout; None if git or the checkout is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
